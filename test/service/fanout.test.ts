import { expect, test } from "vitest";
import { routeKeys } from "../../contracts/subjects.ts";
import { eventually } from "../support/eventually.ts";
import { pipeline, TENANT } from "./pipeline.ts";

test("an event reaches every agent that cares for it, once, with every reason", async () => {
  await using p = await pipeline();
  const { announce } = p;
  await announce.agent("agt_1");
  await announce.agent("agt_2");
  await announce.agent("agt_3", "inactive");
  await announce.agent("agt_4");
  await announce.interest("agt_1", "int_1", "com.shop.*", { priority: 2, enrichment_depth: "light" });
  await announce.interest("agt_1", "int_2", "com.*.created", { priority: 7, enrichment_depth: "none" });
  await announce.interest("agt_2", "int_3", "com.shop.order.created", { filter_expression: "data.total > 100" });
  await announce.interest("agt_3", "int_4", "*");
  await announce.interest("agt_4", "int_5", "com.other.*");
  await announce.member("chn_1", "agt_1");
  await announce.member("chn_1", "agt_4");
  await announce.feed("chn_1", "fed_1", "com.shop.*", "data.total > 5");
  await p.startIngest();
  await p.startFanout();

  await p.publish("com.shop.order.created", { data: { total: 120 } });

  const found = await eventually(async () => {
    const list = await p.deliveries();
    return list.length >= 3 && await p.backlog() === 0 && list;
  }, "three deliveries");
  expect(found.map(({ agent, priority, enrichment }) => ({ agent, priority, enrichment }))).toEqual([
    { agent: "agt_1", priority: 7, enrichment: "light" },
    { agent: "agt_2", priority: 0, enrichment: "none" },
    { agent: "agt_4", priority: 0, enrichment: "none" },
  ]);
  const [first, second, fourth] = found;
  expect(first!.matched).toHaveLength(3);
  expect(first!.matched).toEqual(expect.arrayContaining([
    { interest_id: "int_1" },
    { interest_id: "int_2" },
    { channel_id: "chn_1", feed_id: "fed_1" },
  ]));
  expect(second!.matched).toEqual([{ interest_id: "int_3" }]);
  expect(fourth!.matched).toEqual([{ channel_id: "chn_1", feed_id: "fed_1" }]);
  expect(first).toMatchObject({ v: 1, event_id: "event-1", tenant: TENANT, seq: 1 });
});

test(
  "an interest announced before an event matches it, and one removed before it does not, a thousand times",
  async () => {
    await using p = await pipeline();
    await p.announce.agent("agt_1");
    await p.startIngest();
    await p.startFanout();
    const rounds = Array.from({ length: 1_000 }, (_, i) => i);
    for (const i of rounds) {
      await p.announce.interest("agt_1", `int_${i}`, `round.${i}`);
      await p.publish(`round.${i}`, { id: `kept-${i}` });
      await p.announce.gone(routeKeys.interest(TENANT, "agt_1", `int_${i}`));
      await p.publish(`round.${i}`, { id: `gone-${i}` });
    }
    await eventually(async () => await p.backlog() === 0, "an empty backlog");
    expect((await p.deliveries()).map(({ event_id }) => event_id)).toEqual(rounds.map((i) => `kept-${i}`));
  },
  60_000,
);
