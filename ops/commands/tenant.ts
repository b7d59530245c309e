/** Tenants, their administrators' keys, and the key that signs tokens. */
import type { Command } from "commander";
import { example, type Operator } from "../operator.ts";
import { table } from "../table.ts";

export function tenantCommands(program: Command, { ask, print, confirm }: Operator): void {
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
      print(
        tenants,
        table(["slug", "id", "name", "created"], tenants.map((t) => [t.slug, t.id, t.name, t.created_at])),
      );
    });

  const key = program.command("org-admin").description("administrators of a tenant").command("key")
    .description("their keys");
  key.command("mint")
    .description("mint a further org-admin key; printed once")
    .requiredOption("--tenant <slug or id>", "whose")
    .addHelpText("after", example("org-admin key mint --tenant acme"))
    .action(async ({ tenant }: { tenant: string }) => {
      const made = await ask("operator.admin_key_mint", { tenant });
      print(made, `org-admin key, shown this once: ${made.key}\nkey id: ${made.key_id}`);
    });
  key.command("revoke <key-id>")
    .description("revoke an org-admin key and every token issued from it")
    .requiredOption("--tenant <slug or id>", "whose")
    .option("--yes", "without asking")
    .addHelpText("after", example("org-admin key revoke key_01jd3v8g4w9qk2m7x5t0r6n1ze --tenant acme --yes"))
    .action(async (key_id: string, options: { tenant: string; yes?: boolean }) => {
      await confirm(`This ends ${key_id} and every token issued from it`, options);
      await ask("operator.admin_key_revoke", { tenant: options.tenant, key_id });
      print({ revoked: key_id }, `revoked ${key_id}`);
    });

  program.command("signing-key").description("the key that signs access tokens").command("rotate")
    .description("sign with a new key from now on; tokens signed with the old one live out their hour")
    .addHelpText("after", example("signing-key rotate"))
    .action(async () => {
      const { kid } = await ask("operator.signing_key_rotate", {});
      print({ kid }, `tokens are signed with ${kid} from now on`);
    });
}
