/** Connectors: which brokers are read, and how it goes. */
import { type Command, Option } from "commander";
import type { ConnectorShown } from "../../contracts/ingestion.ts";
import { example, type Operator, wholeNumber } from "../operator.ts";
import { table } from "../table.ts";
import { mappingIn, type MappingOptions, withMapping } from "./mapping.ts";

interface Whose {
  readonly tenant: string;
  readonly yes?: boolean;
}

interface CreateOptions extends Whose, MappingOptions {
  readonly source: string;
  readonly host: string;
  readonly port: number;
  readonly address: string;
  readonly credit: number;
  readonly sasl: "plain" | "external" | "anonymous";
  readonly username?: string;
  readonly passwordFile?: string;
  readonly tls?: boolean;
  readonly caFile?: string;
  readonly certFile?: string;
  readonly keyFile?: string;
  readonly servername?: string;
  readonly paused?: boolean;
}

const ID = "con_01jd3v8g4w9qk2m7x5t0r6n1ze";

export function connectorCommands(program: Command, { ask, print, confirm, tenantId, read, fail }: Operator): void {
  const connector = program.command("connector").description("AMQP 1.0 brokers that are read");
  const command = (name: string, description: string, ...lines: string[]) =>
    connector.command(name).description(description).requiredOption("--tenant <slug or id>", "whose")
      .addHelpText("after", example(...lines));

  const given = async (name: string, file: string | undefined): Promise<Record<string, string>> =>
    file === undefined ? {} : { [name]: await read(file) };

  withMapping(command(
    "create",
    "register a connector; it begins to read at once",
    "connector create --tenant acme --source shop --host broker.example.com --address /queue/orders \\\n" +
      "      --username reader --password-file password.txt --entity order --action /action --id /id",
    "connector create --tenant acme --source events --host broker.example.com --tls --address events \\\n" +
      "      --username reader --password-file -   # CloudEvents need no mapping",
  ))
    .requiredOption("--source <name>", "the outside system: the second word of its events' types")
    .requiredOption("--host <host>", "the broker")
    .option("--port <port>", "its port; 5671 with TLS and 5672 without when left out", wholeNumber)
    .requiredOption("--address <address>", "what to read, as the broker names it, such as /queue/orders")
    .option("--credit <count>", "how many messages may be under way at once", wholeNumber, 100)
    .addOption(
      new Option("--sasl <mechanism>", "how to log in").choices(["plain", "external", "anonymous"]).default("plain"),
    )
    .option("--username <name>", "for SASL PLAIN")
    .option("--password-file <file>", "for SASL PLAIN, from a file or from - (standard input)")
    .option("--tls", "over TLS")
    .option("--ca-file <file>", "authorities to trust instead of the machine's, PEM")
    .option("--cert-file <file>", "our certificate, PEM; for SASL EXTERNAL")
    .option("--key-file <file>", "its private key, PEM")
    .option("--servername <name>", "the name in the broker's certificate; the host when left out")
    .option("--paused", "do not read yet")
    .action(async (options: CreateOptions) => {
      const { tenant, source, host, port, address, credit, sasl, username, servername, paused = false } = options;
      const usesTls = options.tls || options.caFile || options.certFile || servername;
      const tls = usesTls
        ? {
          ...await given("ca", options.caFile),
          ...await given("cert", options.certFile),
          ...(servername ? { servername } : {}),
        }
        : null;
      const made = await ask("operator.connector_create", {
        tenant,
        source,
        settings: {
          host,
          port: port ?? (tls ? 5671 : 5672),
          tls,
          sasl,
          address,
          credit,
          ...(username ? { username } : {}),
        },
        secrets: { ...await given("password", options.passwordFile), ...await given("key", options.keyFile) },
        mapping: mappingIn(options),
        paused,
      });
      print(made, described(made));
    });

  connector.command("list")
    .description("list connectors and how they do: a tenant's, or all")
    .option("--tenant <slug or id>", "whose")
    .addHelpText("after", example("connector list", "connector list --tenant acme --json"))
    .action(async ({ tenant }: { tenant?: string }) => {
      const { connectors } = await ask("operator.connector_list", tenant ? { tenant } : {});
      print(connectors, listed(connectors, Date.now()));
    });

  command("show <id>", "show a connector, how it does and what it rejected", `connector show ${ID} --tenant acme`)
    .action(async (id: string, { tenant }: Whose) => {
      const found = await ask("operator.connector_show", { tenant, id });
      print(found, described(found));
    });

  for (
    const [verb, name, effect] of [
      ["pause", "operator.connector_pause", "stop reading; messages stay with the broker"],
      ["resume", "operator.connector_resume", "read again"],
    ] as const
  ) {
    command(`${verb} <id>`, effect, `connector ${verb} ${ID} --tenant acme`)
      .action(async (id: string, { tenant }: Whose) => {
        const changed = await ask(name, { tenant, id });
        print(changed, `${verb}d ${id}`);
      });
  }

  command(
    "delete <id>",
    "delete a connector; messages stay with the broker",
    `connector delete ${ID} --tenant acme --yes`,
  )
    .option("--yes", "without asking")
    .action(async (id: string, options: Whose) => {
      await confirm(`This deletes ${id} and its counts`, options);
      await ask("operator.connector_delete", { tenant: options.tenant, id });
      print({ deleted: id }, `deleted ${id}`);
    });

  command(
    "test <id>",
    "connect to the broker and open the address, without taking a message",
    `connector test ${ID} --tenant acme`,
  )
    .action(async (id: string, { tenant }: Whose) => {
      const result = await ask("operator.connector_test", { tenant: await tenantId(tenant), id });
      print(result, result.detail);
      if (!result.ok) fail();
    });
}

/** What waits and is under way first; then what became of all there was. */
function listed(connectors: readonly ConnectorShown[], nowMs: number): string {
  const columns: Record<string, (shown: ConnectorShown) => unknown> = {
    id: ({ id }) => id,
    source: ({ source }) => source,
    reads: ({ settings: { host, port, address } }) => `${host}:${port} ${address}`,
    status: ({ state }) => state.status,
    waiting: ({ state }) => state.waiting,
    unsettled: ({ state }) => state.unsettled,
    oldest: ({ state }) => ageOf(state.oldest_unsettled_at, nowMs),
    credit: ({ state }) => state.credit,
    received: ({ state }) => state.received,
    accepted: ({ state }) => state.accepted,
    duplicate: ({ state }) => state.duplicate,
    rejected: ({ state }) => state.rejected,
    released: ({ state }) => state.released,
    reconnects: ({ state }) => state.reconnects,
    "last message": ({ state }) => state.last_message_at,
    error: ({ state }) => state.status === "connected" ? null : state.last_error,
  };
  return table(Object.keys(columns), connectors.map((shown) => Object.values(columns).map((cell) => cell(shown))));
}

const ageOf = (since: string | null, nowMs: number): string | null =>
  since === null ? null : `${Math.max(0, Math.round((nowMs - Date.parse(since)) / 1_000))} s`;

function described({ id, source, settings, mapping, state }: ConnectorShown): string {
  const { host, port, address, sasl, username, tls, credit } = settings;
  return [
    `connector ${id}`,
    `reads ${address} at ${host}:${port}${tls ? " over TLS" : ""}, SASL ${sasl}${username ? ` as ${username}` : ""}`,
    `source ${source}, up to ${credit} messages under way`,
    ...Object.entries(mapping ?? {}).map(([field, place]) => `  ${field} = ${place}`),
    `${state.status}${state.owner ? ` in ${state.owner}` : ""}, connected again ${state.reconnects} times`,
    `received ${state.received}: ${state.accepted} accepted, ${state.duplicate} duplicate, ${state.rejected} rejected, ` +
    `${state.released} released, ${state.unsettled} unsettled`,
    `waiting at the broker: ${state.waiting ?? "it does not say"}; it may send ${state.credit} more`,
    ...(state.oldest_unsettled_at ? [`oldest unsettled since ${state.oldest_unsettled_at}`] : []),
    ...(state.last_message_at ? [`last message ${state.last_message_at}`] : []),
    ...(state.last_error ? [`last error: ${state.last_error}`] : []),
    ...state.rejections.map(({ at, message_id, reason }) => `rejected ${at} ${message_id ?? "-"}: ${reason}`),
  ].join("\n");
}
