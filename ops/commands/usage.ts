/** Usage: events accepted by tenant and day. */
import type { Command } from "commander";
import { example, type Operator } from "../operator.ts";
import { table } from "../table.ts";

export function usageCommands(program: Command, { ask, print, tenantId }: Operator): void {
  program.command("usage")
    .description("events accepted, and their bytes, by tenant and day of UTC")
    .option("--tenant <slug or id>", "of this tenant alone")
    .option("--from <date>", "the first day, such as 2026-01-31")
    .option("--to <date>", "the last day")
    .addHelpText("after", example("usage --tenant acme --from 2026-01-01 --json"))
    .action(async ({ tenant, from, to }: { tenant?: string; from?: string; to?: string }) => {
      const { usage } = await ask("operator.usage", {
        ...(tenant ? { tenant: await tenantId(tenant) } : {}),
        ...(from ? { from } : {}),
        ...(to ? { to } : {}),
      });
      print(usage, table(["day", "tenant", "events", "bytes"], usage.map((u) => [u.day, u.tenant, u.events, u.bytes])));
    });
}
