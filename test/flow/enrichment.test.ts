/** Deliveries that bring along what the agent knows already. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { services } from "../../contracts/operation.ts";
import { Delivery } from "../../contracts/deliveries.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let t: TestTenant;
beforeAll(async () => {
  w = await world({ services });
  t = await w.tenant();
}, 60_000);
afterAll(() => w?.[Symbol.asyncDispose]());

let count = 0;
async function delivered(
  agent: TestAgent,
  depth: "none" | "light" | "full",
  data: unknown,
  through = w,
): Promise<Delivery> {
  const type = `com.rich${count++}.made`;
  await agent.call("interests.create", {
    path: { id: agent.id },
    body: { event_type: type, priority: 0, enrichment_depth: depth },
  });
  const event = { specversion: "1.0", type, source: "/a", id: type, data };
  expect((await through.request("POST", "/events", { token: agent.token, body: event })).status).toBe(202);
  const { body } = await through.request("GET", "/delivery/poll?wait=5", { token: agent.token });
  return Delivery.parse(body.deliveries[0]);
}
const remember = (agent: TestAgent, title: string, content: string, scope: "agent" | "institutional" = "agent") =>
  agent.call("memories.create", { body: { type: "semantic", scope, title, content } });

test("light brings ids and titles of the nearest memories the agent may read; none brings nothing", async () => {
  const [agent, other] = [await t.agent(), await t.agent()];
  const near = await remember(agent, "Refund policy", "A refund over 500 euros needs the approval of the treasurer");
  await remember(agent, "Coffee", "The coffee machine on the third floor is broken");
  const secret = await remember(other, "Refund secrets", "A refund that only the other agent may know of");
  const data = { text: "a customer asks for a refund of 700 euros" };
  const { payload } = await delivered(agent, "light", data);
  const found = payload.context!.memories;
  expect(found[0]).toEqual({ id: near.id, title: "Refund policy", type: "semantic", score: expect.any(Number) });
  expect(found.map(({ id }) => id)).not.toContain(secret.id);
  expect(found.length).toBeLessThanOrEqual(5);
  expect(payload.context).not.toHaveProperty("incomplete");
  expect((await delivered(agent, "none", data)).payload).not.toHaveProperty("context");
});

test("full brings whole memories with their direct relationships", async () => {
  const agent = await t.agent();
  const policy = await remember(agent, "Invoice policy", "Invoices are paid within thirty days");
  const exception = await remember(agent, "Invoice exception", "Invoices of the landlord are paid at once");
  await agent.call("relationships.create", {
    path: { id: policy.id },
    body: { target_memory_id: exception.id, relationship_type: "contradicts" },
  });
  const { payload } = await delivered(agent, "full", { text: "an invoice to be paid" });
  const found = payload.context!.memories.find(({ id }) => id === policy.id);
  expect(found).toMatchObject({
    content: policy.content,
    relationships: [{ target_memory_id: exception.id, relationship_type: "contradicts" }],
  });
});

test("without the memory service a delivery comes all the same, and says that something is missing", async () => {
  await using alone = await world({ services: services.filter((name) => name !== "memory") });
  const agent = await (await alone.tenant()).agent();
  const { payload } = await delivered(agent, "light", { text: "a refund" }, alone);
  expect(payload.context).toEqual({ memories: [], incomplete: true });
});
