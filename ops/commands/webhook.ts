/** Webhooks: who may post to /w/{slug}, and how what they post becomes events. */
import { type Command, Option } from "commander";
import { OVERLAP_SECONDS, type Preset, presets, type Webhook } from "../../contracts/ingestion.ts";
import { example, type Operator, wholeNumber } from "../operator.ts";
import { table } from "../table.ts";
import { mappingIn, type MappingOptions, withMapping } from "./mapping.ts";

interface Whose {
  readonly tenant: string;
  readonly yes?: boolean;
}

export function webhookCommands(program: Command, { ask, print, confirm, gatewayUrl, read, fail }: Operator): void {
  const webhook = program.command("webhook").description("signed requests from outside");
  const command = (name: string, description: string, ...lines: string[]) =>
    webhook.command(name).description(description).requiredOption("--tenant <slug or id>", "whose")
      .addHelpText("after", example(...lines));
  const addressOf = async (path: string) => (await gatewayUrl().catch(() => "")) + path;

  withMapping(command(
    "create",
    "register a webhook; prints its signing secret, once",
    "webhook create --tenant acme --source shop --entity order --action /action --id /id --entity-id /order/number",
    "webhook create --tenant acme --source github --preset github",
    "webhook create --tenant acme --source stripe --preset stripe --secret-file -   # paste Stripe's secret",
  ))
    .requiredOption("--source <name>", "the outside system: the second word of its events' types")
    .addOption(new Option("--preset <sender>", "whose signatures and bodies").choices(presets).default("custom"))
    .option("--secret-file <file>", "a secret that the sender chose, from a file or from - (standard input)")
    .action(async (options: Whose & MappingOptions & { source: string; preset: Preset; secretFile?: string }) => {
      const { tenant, source, preset, secretFile } = options;
      const made = await ask("operator.webhook_create", {
        tenant,
        source,
        preset,
        mapping: mappingIn(options),
        ...(secretFile ? { secret: await read(secretFile) } : {}),
      });
      print(made, `${await described(made.webhook)}${secretLine(made.secret)}`);
    });

  command("list", "list the webhooks of a tenant", "webhook list --tenant acme")
    .action(async ({ tenant }: Whose) => {
      const { webhooks } = await ask("operator.webhook_list", { tenant });
      const rows = webhooks.map(({ id, source, preset, secrets, created_at, path }) => [
        id,
        source,
        preset,
        path,
        secrets.length,
        created_at,
      ]);
      print(webhooks, table(["id", "source", "preset", "path", "secrets", "created"], rows));
    });

  command("show <id>", "show a webhook and its mapping", "webhook show whk_01jd3v8g4w9qk2m7x5t0r6n1ze --tenant acme")
    .action(async (id: string, { tenant }: Whose) => {
      const found = await ask("operator.webhook_show", { tenant, id });
      print(found, await described(found));
    });

  command(
    "rotate <id>",
    "give a webhook a new secret, printed once; the old one stays valid for a while",
    "webhook rotate whk_01jd3v8g4w9qk2m7x5t0r6n1ze --tenant acme --overlap 3600",
  )
    .option("--overlap <seconds>", "how long the old secret stays valid", wholeNumber, OVERLAP_SECONDS)
    .option("--secret-file <file>", "a secret that the sender chose, from a file or from - (standard input)")
    .option("--yes", "without asking, where the old secret ends at once")
    .action(async (id: string, options: Whose & { overlap: number; secretFile?: string }) => {
      const { tenant, overlap, secretFile } = options;
      if (overlap === 0) await confirm(`This ends the secrets of ${id} at once`, options);
      const made = await ask("operator.webhook_rotate", {
        tenant,
        id,
        overlap_seconds: overlap,
        ...(secretFile ? { secret: await read(secretFile) } : {}),
      });
      print(made, `${await described(made.webhook)}${secretLine(made.secret)}`);
    });

  command(
    "delete <id>",
    "delete a webhook; its sender is refused from then on",
    "webhook delete whk_01jd3v8g4w9qk2m7x5t0r6n1ze --tenant acme --yes",
  )
    .option("--yes", "without asking")
    .action(async (id: string, options: Whose) => {
      await confirm(`This deletes ${id}, and its sender is refused from then on`, options);
      await ask("operator.webhook_delete", { tenant: options.tenant, id });
      print({ deleted: id }, `deleted ${id}`);
    });

  command(
    "test <id>",
    "send a sample, signed as the sender would; it becomes an event like any other",
    "webhook test whk_01jd3v8g4w9qk2m7x5t0r6n1ze --tenant acme",
    "webhook test whk_01jd3v8g4w9qk2m7x5t0r6n1ze --tenant acme --body-file order.json",
  )
    .option("--body-file <file>", "a body of your own, from a file or from - (standard input)")
    .action(async (id: string, { tenant, bodyFile }: Whose & { bodyFile?: string }) => {
      const body = bodyFile === undefined ? {} : { body: await read(bodyFile) };
      const sample = await ask("operator.webhook_sample", { tenant, id, ...body });
      const url = await gatewayUrl() + sample.path;
      const response = await fetch(url, { method: "POST", headers: sample.headers, body: sample.body });
      const answer = await response.json();
      print(
        { url, sent: sample.body, status: response.status, answer },
        [
          `POST ${url}`,
          ...Object.entries(sample.headers).map(([name, value]) => `${name}: ${value}`),
          "",
          sample.body,
          "",
          `${response.status} ${JSON.stringify(answer)}`,
        ].join("\n"),
      );
      if (!response.ok) fail();
    });

  const described = async ({ id, source, preset, path, mapping, secrets }: Webhook) =>
    [
      `webhook ${id}`,
      `senders post to ${await addressOf(path)}`,
      `source ${source}, preset ${preset}`,
      ...Object.entries(mapping ?? {}).map(([field, place]) => `  ${field} = ${place}`),
      ...secrets.map(({ created_at, expires_at }) =>
        `secret of ${created_at}${expires_at ? `, valid until ${expires_at}` : ""}`
      ),
    ].join("\n");
}

const secretLine = (secret: string | null) => secret ? `\nsigning secret, shown this once: ${secret}` : "";
