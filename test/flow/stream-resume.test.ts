/**
 * A reader whose line broke comes back with the id of the last event it got. The visibility timeout is far longer than
 * the test: what comes again comes because of that id.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { services } from "../../contracts/operation.ts";
import { eventually } from "../support/eventually.ts";
import { readStream } from "../support/sse.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let t: TestTenant;
let count = 0;
beforeAll(async () => {
  w = await world({
    services,
    gateways: 2,
    env: { VISIBILITY_TIMEOUT_SECONDS: "600", RATE_LIMIT_TOKEN_PER_MINUTE: "0" },
  });
  t = await w.tenant();
}, 60_000);
afterAll(() => w?.[Symbol.asyncDispose]());

async function listener() {
  const agent = await t.agent();
  const type = `com.resume${count++}.thing`;
  await agent.call("interests.create", {
    path: { id: agent.id },
    body: { event_type: type, priority: 0, enrichment_depth: "none" },
  });
  const publish = async (data: unknown = {}) => {
    const id = `r-${count++}`;
    await agent.call("events.publish", { body: { specversion: "1.0", type, source: "urn:test", id, data } });
    return id;
  };
  return { agent, publish };
}

const open = ({ token }: Pick<TestAgent, "token">, lastEventId?: string, gateway = 0) =>
  // Few at a time, so that a round of large events fits into one answer and none has to go back.
  readStream(`${w.urls[gateway]}/delivery/stream?limit=2`, { token }, lastEventId);
type Reading = Awaited<ReturnType<typeof open>>;

const take = async (stream: Reading, many: number) => {
  const taken = [];
  for (let n = 0; n < many; n++) taken.push(await stream.delivery());
  return taken;
};
const ids = (deliveries: readonly { id: string }[]) => deliveries.map(({ id }) => id);

describe.each([["the gateway it had", 0], ["another gateway", 1]])("a reader that comes back to %s", (_, gateway) => {
  test("gets at once what came after the event it names, for the same attempt, and then what is new", async () => {
    const { agent, publish } = await listener();
    for (let n = 0; n < 5; n++) await publish();
    const broken = await open(agent);
    const sent = await take(broken, 5);
    broken.leave();
    using next = await open(agent, sent[1]!.id, gateway);
    expect(await take(next, 3)).toEqual(sent.slice(2));
    const fresh = await publish();
    expect(await next.delivery()).toMatchObject({ event_id: fresh, attempt_count: 1 });
    // It had got the others: they are acknowledged as if nothing had happened.
    expect(await agent.call("delivery.ack", { body: { delivery_ids: ids(sent) } })).toEqual({ acknowledged: 5 });
  });

  test("gets nothing that it has acknowledged meanwhile", async () => {
    const { agent, publish } = await listener();
    for (let n = 0; n < 5; n++) await publish();
    const broken = await open(agent);
    const sent = await take(broken, 5);
    broken.leave();
    await agent.call("delivery.ack", { body: { delivery_ids: [sent[2]!.id, sent[4]!.id] } });
    using next = await open(agent, sent[0]!.id, gateway);
    expect(ids(await take(next, 2))).toEqual([sent[1]!.id, sent[3]!.id]);
    const fresh = await publish();
    expect(await next.delivery()).toMatchObject({ event_id: fresh });
  });

  test("gets it as often as its line breaks", async () => {
    const { agent, publish } = await listener();
    for (let n = 0; n < 3; n++) await publish();
    const first = await open(agent);
    const sent = await take(first, 3);
    first.leave();
    for (let n = 0; n < 3; n++) {
      const again = await open(agent, sent[0]!.id, n % 2 ? gateway : 0);
      expect(ids(await take(again, 2))).toEqual(ids(sent.slice(1)));
      again.leave();
    }
  });

  test("ends the stream it had, and gets what that one held for it: nothing is lost, no attempt used", async () => {
    const { agent, publish } = await listener();
    const published = new Set<string>();
    for (let n = 0; n < 40; n++) published.add(await publish("x".repeat(200_000)));
    // Eight megabytes are more than the sockets hold, so a part is written, a part is in hand, and the rest is queued.
    using stuck = await open(agent);
    const first = await stuck.delivery();
    using next = await open(agent, first.id, gateway);
    const rest = await take(next, 39);
    expect(new Set([first, ...rest].map(({ event_id }) => event_id))).toEqual(published);
    expect(new Set(rest.map(({ attempt_count }) => attempt_count))).toEqual(new Set([1]));
    while (await stuck.frame());
  }, 60_000);

  test("does not end the stream of another reader of the same agent", async () => {
    const { agent, publish } = await listener();
    using one = await open(agent);
    using other = await open(agent, undefined, gateway);
    // Whose turn it is is the broker's to say.
    const got = { one: 0, other: 0 };
    let lastOfOne = "";
    const reading = [
      (async () => {
        for (;;) {
          const { id } = await one.delivery();
          got.one++;
          lastOfOne = id;
        }
      })(),
      (async () => {
        for (;;) await other.delivery().then(() => got.other++);
      })(),
    ].map((work) => work.catch(() => {}));
    await eventually(async () => (await publish(), got.one > 0 && got.other > 0), "something for each of them");
    using next = await open(agent, lastOfOne, gateway);
    await reading[0];
    const before = got.other;
    void (async () => {
      for (;;) await next.delivery();
    })().catch(() => {});
    await eventually(async () => (await publish(), got.other > before), "something more for the other one");
  });
});

describe("an id of which nothing is known", () => {
  test.each([
    ["is none", "nonsense"],
    ["is empty", ""],
    ["is too long", `dlv_${"0".repeat(500)}`],
    ["never was", "dlv_01jd3v8g4w9qk2m7x5t0r6n1ze"],
  ])("because it %s begins a stream like any other", async (_, id) => {
    const { agent, publish } = await listener();
    using stream = await open(agent, id);
    expect(stream.response.status).toBe(200);
    const published = await publish();
    expect(await stream.delivery()).toMatchObject({ event_id: published, attempt_count: 1 });
  });

  test("because it is another agent's gives nothing of it away, and leaves its stream alone", async () => {
    const [owner, thief] = [await listener(), await listener()];
    using stream = await open(owner.agent);
    await owner.publish();
    const first = await stream.delivery();
    await owner.publish();
    await stream.delivery();
    using stolen = await open(thief.agent, first.id);
    const own = await thief.publish();
    expect(await stolen.delivery()).toMatchObject({ event_id: own });
    const third = await owner.publish();
    expect(await stream.delivery()).toMatchObject({ event_id: third });
  });
});
