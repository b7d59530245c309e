/** Dead letters: what no agent acknowledged, or nobody could be given. */
import type { Command } from "commander";
import { example, type Operator, wholeNumber } from "../operator.ts";
import { table } from "../table.ts";

interface Whose {
  readonly tenant: string;
  readonly agent?: string;
}

export function dlqCommands(program: Command, { ask, print, confirm, tenantId, fail }: Operator): void {
  const dlq = program.command("dlq").description("dead letters");
  const command = (name: string, description: string, line: string) =>
    dlq.command(name).description(description).requiredOption("--tenant <slug or id>", "whose")
      .addHelpText("after", example(line));
  const agentIn = (agent: string | undefined) => agent ? { agent } : {};

  command("list", "list dead letters, newest first", "dlq list --tenant acme --limit 20")
    .option("--agent <id>", "of this agent alone")
    .option("--offset <count>", "how many to leave out", wholeNumber, 0)
    .option("--limit <count>", "how many at most, up to 200", wholeNumber, 50)
    .action(async ({ tenant, agent, offset, limit }: Whose & { offset: number; limit: number }) => {
      const page = { tenant: await tenantId(tenant), ...agentIn(agent), offset, limit };
      const found = await ask("operator.dlq_list", page);
      const rows = found.dlq_items.map((item) => [
        item.delivery_id,
        item.agent_id,
        item.event_type,
        item.event_id,
        item.attempt_count,
        item.dead_lettered_at,
        item.dlq_reason,
      ]);
      const head = ["delivery", "agent", "type", "event", "attempts", "dead since", "reason"];
      print(found, `${table(head, rows)}\n${rows.length} of ${found.total}`);
    });

  command("replay <delivery-id...>", "queue dead letters again for their agents", "dlq replay dlv_… --tenant acme")
    .action(async (delivery_ids: string[], { tenant }: Whose) => {
      const answer = await ask("operator.dlq_replay", { tenant: await tenantId(tenant), delivery_ids });
      print(answer, `replayed ${answer.replayed} of ${delivery_ids.length}`);
      if (answer.replayed < delivery_ids.length) fail();
    });

  command("purge", "delete dead letters for good", "dlq purge --tenant acme --before 2026-01-01T00:00:00Z --yes")
    .option("--agent <id>", "of this agent alone")
    .option("--before <date-time>", "only what died before this moment")
    .option("--yes", "without asking")
    .action(async ({ tenant, agent, before, yes }: Whose & { before?: string; yes?: boolean }) => {
      const which = `${agent ? `of ${agent} ` : ""}${before ? `from before ${before} ` : ""}`;
      await confirm(`This deletes the dead letters ${which}in ${tenant} for good`, { yes });
      const filter = { tenant: await tenantId(tenant), ...agentIn(agent), ...(before ? { before } : {}) };
      const answer = await ask("operator.dlq_purge", filter);
      print(answer, `purged ${answer.purged}`);
    });
}
