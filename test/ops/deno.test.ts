/** Every process on its own under Deno, with the permissions of deno.json: the short form of `npm run test:deno`. */
import { expect, test } from "vitest";
import { programs } from "../../ops/fleet.ts";
import { fleet } from "../support/fleet.ts";
import { interested } from "../support/interested.ts";

test("an event is delivered and acknowledged, a memory kept and found, and all of it measured", async () => {
  await using running = await fleet({ runtime: "deno", programs });
  const agent = await interested(await running.tenant(), "com.shop.order.*");
  const event = { specversion: "1.0", type: "com.shop.order.made", source: "/shop", id: "order-1", data: { total: 1 } };
  expect((await running.request("POST", "/events", { token: agent.token, body: event })).status).toBe(202);
  const { deliveries } = await agent.call("delivery.poll", { query: { wait: 10 } });
  expect(deliveries.map(({ event_id }) => event_id)).toEqual(["order-1"]);
  expect(await agent.call("delivery.ack", { body: { delivery_ids: deliveries.map(({ id }) => id) } }))
    .toEqual({ acknowledged: 1 });

  const body = { type: "semantic", scope: "agent", title: "Refunds", content: "The treasurer approves them" } as const;
  const kept = await agent.call("memories.create", { body });
  const found = await agent.call("memories.search", { body: { query: "who says yes to a refund?" } });
  expect(found).toMatchObject({ degraded: false, results: [{ memory: { id: kept.id } }] });

  for (const { name, healthUrl } of running.members) {
    expect(await (await fetch(`${healthUrl}/metrics`)).text(), name).toMatch(/^event_loop_utilization [\d.]+$/m);
  }
}, 90_000);
