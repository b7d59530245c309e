/** The operator's commands. They speak to the services over the bus, with the bus's own credentials. */
import { resolve } from "node:path";
import { Command } from "commander";
import { Fault } from "../contracts/errors.ts";
import { newId, ulid } from "../contracts/identity.ts";
import type { Input, OperationName, Output } from "../contracts/operations.ts";
import { connectBus } from "../runtime/bus.ts";
import { silent } from "../runtime/log.ts";
import { version } from "../runtime/version.ts";
import { findInstance } from "./instance.ts";
import { table } from "./table.ts";

const program = new Command("npm run ops --")
  .description("Operate a Sensorium instance. Finds a running one by NATS_URL, or in DATA_DIR.")
  .version(await version())
  .option("--json", "print JSON for programs instead of tables for people")
  .showHelpAfterError()
  .configureHelp({ showGlobalOptions: true })
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2));

/** Asks one question and closes the bus again. */
async function ask<N extends OperationName>(name: N, body: Input<N>["body"]): Promise<Output<N>> {
  const dataDir = resolve(process.env.DATA_DIR || ".data");
  const url = process.env.NATS_URL || (await findInstance(dataDir))?.nats_url;
  if (!url) throw new Error(`No instance runs in ${dataDir}: start one with npm start, or set DATA_DIR or NATS_URL`);
  await using bus = await connectBus(url, "operator", silent).catch((error) => {
    throw new Error(`The bus cannot be reached: ${error.message}`);
  });
  const origin = { caller: { kind: "operator" }, requestId: newId("request"), seed: ulid() } as const;
  return (await bus.ask(name, { path: {}, query: {}, body } as never, origin)).read();
}

/** Prints an answer for whoever reads it. */
function print(answer: unknown, forPeople: string): void {
  console.log(program.opts<{ json?: boolean }>().json ? JSON.stringify(answer ?? {}, null, 2) : forPeople);
}

const example = (line: string) => `\nExample:\n  npm run ops -- ${line}\n`;

const tenant = program.command("tenant").description("tenants");
tenant.command("create <slug>")
  .description("create a tenant; prints its first org-admin key, once")
  .option("--name <name>", "a name for people; the slug when left out")
  .addHelpText("after", example("tenant create acme --name 'Acme Inc.'"))
  .action(async (slug: string, { name }: { name?: string }) => {
    const made = await ask("operator.tenant_create", { slug, ...(name ? { name } : {}) });
    print(
      made,
      `tenant ${made.tenant.slug} (${made.tenant.id})\norg-admin key, shown this once: ${made.org_admin.key}\nkey id: ${made.org_admin.key_id}`,
    );
  });
tenant.command("list")
  .description("list all tenants")
  .addHelpText("after", example("tenant list --json"))
  .action(async () => {
    const { tenants } = await ask("operator.tenant_list", {});
    print(tenants, table(["slug", "id", "name", "created"], tenants.map((t) => [t.slug, t.id, t.name, t.created_at])));
  });

const orgAdminKey = program.command("org-admin").description("administrators of a tenant").command("key").description(
  "their keys",
);
orgAdminKey.command("mint")
  .description("mint a further org-admin key; printed once")
  .requiredOption("--tenant <slug or id>", "whose")
  .addHelpText("after", example("org-admin key mint --tenant acme"))
  .action(async ({ tenant }: { tenant: string }) => {
    const made = await ask("operator.admin_key_mint", { tenant });
    print(made, `org-admin key, shown this once: ${made.key}\nkey id: ${made.key_id}`);
  });
orgAdminKey.command("revoke <key-id>")
  .description("revoke an org-admin key and every token issued from it")
  .requiredOption("--tenant <slug or id>", "whose")
  .addHelpText("after", example("org-admin key revoke key_01jd3v8g4w9qk2m7x5t0r6n1ze --tenant acme"))
  .action(async (key_id: string, { tenant }: { tenant: string }) => {
    await ask("operator.admin_key_revoke", { tenant, key_id });
    print({ revoked: key_id }, `revoked ${key_id}`);
  });

program.command("signing-key").description("the key that signs access tokens").command("rotate")
  .description("sign with a new key from now on; tokens signed with the old one live out their hour")
  .addHelpText("after", example("signing-key rotate"))
  .action(async () => {
    const { kid } = await ask("operator.signing_key_rotate", {});
    print({ kid }, `tokens are signed with ${kid} from now on`);
  });

try {
  await program.parseAsync();
} catch (error) {
  const said = error instanceof Fault ? `${error.code}: ${error.message}` : (error as Error).message;
  console.error(said);
  process.exitCode = 1;
}
