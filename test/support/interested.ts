/** An agent that cares. */
import type { TestAgent, TestTenant } from "./world.ts";

export async function interested(tenant: TestTenant, event_type: string): Promise<TestAgent> {
  const agent = await tenant.agent();
  const body = { event_type, priority: 0, enrichment_depth: "none" as const };
  await agent.call("interests.create", { path: { id: agent.id }, body });
  return agent;
}
