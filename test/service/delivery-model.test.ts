/**
 * Whatever agents do, in whatever order, the queue does what a plain model of it does. Three agents, two replicas.
 * QUEUE_MODEL_RUNS and QUEUE_MODEL_STEPS make it a long run.
 */
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Fault } from "../../contracts/errors.ts";
import { eventually } from "../support/eventually.ts";
import { type Post, post, type TestAgent } from "./support.ts";

const RUNS = Number(process.env.QUEUE_MODEL_RUNS ?? 8);
const STEPS = Number(process.env.QUEUE_MODEL_STEPS ?? 40);
const VISIBILITY_MS = 1_000;
const MAX_ATTEMPTS = 3;
/** By how much the clocks of broker and test may disagree about the end of a lease. */
const SLACK_MS = 150;

/** One delivery as the model sees it. Between `freeFrom` and `surelyFreeFrom` nobody can say whether it is leased. */
interface Item {
  readonly agent: number;
  readonly event: string;
  readonly priority: number;
  readonly order: number;
  id?: string;
  attempt: number;
  state: "pending" | "acknowledged" | "dead";
  freeFrom: number;
  surelyFreeFrom: number;
}

class Model {
  readonly items: Item[] = [];
  of = (agent: number) => this.items.filter((item) => item.agent === agent);
  known = (agent: number) => this.of(agent).filter((item) => item.id !== undefined);
}

interface Real {
  readonly post: Post;
  readonly agents: readonly TestAgent[];
  order: number;
}

const now = () => performance.now();
const isLast = (item: Item) => item.state === "pending" && item.attempt === MAX_ATTEMPTS;
/** Its last lease may be over: nobody can say whether it is dead already. */
const isDying = (item: Item) => isLast(item) && now() >= item.freeFrom - SLACK_MS;
const pick = <T>(list: readonly T[], at: number): T | undefined => list[at % Math.max(1, list.length)];

abstract class Step implements fc.AsyncCommand<Model, Real> {
  readonly agent: number;
  constructor(agent: number) {
    this.agent = agent;
  }
  check() {
    return true;
  }
  abstract run(model: Model, real: Real): Promise<void>;
  toString() {
    return `${this.constructor.name}(${Object.values(this).join(",")})`;
  }
}

class Send extends Step {
  readonly priority: number;
  constructor(agent: number, priority: number) {
    super(agent);
    this.priority = priority;
  }
  async run(model: Model, real: Real) {
    const { agent, priority } = this;
    const { id } = await real.post.send([real.agents[agent]!], {}, priority);
    const at = now();
    const fresh = { attempt: 0, state: "pending", freeFrom: at, surelyFreeFrom: at } as const;
    model.items.push({ agent, event: id, priority, order: real.order++, ...fresh });
  }
}

class Poll extends Step {
  readonly limit: number;
  constructor(agent: number, limit: number) {
    super(agent);
    this.limit = limit;
  }
  async run(model: Model, real: Real) {
    const before = now();
    const ready = model.of(this.agent).filter((item) =>
      item.state === "pending" && !isLast(item) && item.surelyFreeFrom + SLACK_MS <= before
    );
    const got = await real.agents[this.agent]!.poll(this.limit, ready.length > 0 ? 10 : 0);
    const after = now();
    if (ready.length > 0) expect(got.length).toBeGreaterThan(0);
    const items = got.map((delivery) => {
      const item = model.of(this.agent).find(({ event }) => event === delivery.event_id)!;
      expect(item).toMatchObject({ state: "pending", attempt: delivery.attempt_count - 1 });
      expect(delivery.attempt_count).toBeLessThanOrEqual(MAX_ATTEMPTS);
      expect(delivery.id).toBe(item.id ?? delivery.id);
      expect(item.freeFrom - SLACK_MS).toBeLessThanOrEqual(after);
      Object.assign(item, {
        id: delivery.id,
        attempt: delivery.attempt_count,
        freeFrom: before + VISIBILITY_MS,
        surelyFreeFrom: after + VISIBILITY_MS,
      });
      return item;
    });
    const sorted = [...items].sort((a, b) => b.priority - a.priority);
    expect(items.map((item) => item.priority)).toEqual(sorted.map((item) => item.priority));
    for (const tier of new Set(items.map((item) => item.priority))) {
      const firsts = items.filter((item) => item.priority === tier && item.attempt === 1).map((item) => item.order);
      expect(firsts).toEqual([...firsts].sort((a, b) => a - b));
    }
    const passedOver = ready.filter((item) => !items.includes(item));
    if (passedOver.length > 0 && items.length === this.limit) {
      expect(Math.max(...passedOver.map((item) => item.priority))).toBeLessThanOrEqual(items.at(-1)!.priority);
    }
  }
}

class Ack extends Step {
  readonly which: number;
  readonly count: number;
  constructor(agent: number, which: number, count: number) {
    super(agent);
    this.which = which;
    this.count = count;
  }
  async run(model: Model, real: Real) {
    const known = model.known(this.agent).filter((item) => !isDying(item));
    const chosen = known.slice(this.which % Math.max(1, known.length)).slice(0, this.count);
    if (chosen.length === 0) return;
    const others = real.agents[(this.agent + 1) % 3]!;
    expect(await others.ack(chosen.map((item) => item.id!))).toBe(0);
    const counts = await Promise.all(
      Array.from({ length: 2 }, () => real.agents[this.agent]!.ack(chosen.map((item) => item.id!))),
    );
    expect(counts[0]! + counts[1]!).toBe(chosen.filter((item) => item.state === "pending").length);
    for (const item of chosen) if (item.state === "pending") item.state = "acknowledged";
  }
}

class Hold extends Step {
  readonly which: number;
  /** Released for 0, else extended. */
  readonly seconds: number;
  constructor(agent: number, which: number, seconds: number) {
    super(agent);
    this.which = which;
    this.seconds = seconds;
  }
  async run(model: Model, real: Real) {
    const item = pick(model.known(this.agent), this.which);
    if (!item || isDying(item)) return;
    const { ask } = real.agents[this.agent]!;
    const wasFree = now() >= item.freeFrom - SLACK_MS;
    const before = now();
    const held = this.seconds === 0
      ? (await ask("delivery.nack", { body: { delivery_ids: [item.id!] } })).released
      : (await ask("delivery.extend", { body: { delivery_ids: [item.id!], seconds: this.seconds } })).extended;
    const after = now();
    expect(held).toBe(item.state === "pending" ? 1 : 0);
    if (item.state !== "pending") return;
    if (isLast(item) && this.seconds === 0) item.state = "dead";
    item.freeFrom = wasFree || after >= item.freeFrom - SLACK_MS
      ? Math.min(item.freeFrom, before)
      : before + this.seconds * 1_000;
    item.surelyFreeFrom = after + this.seconds * 1_000;
  }
}

class Reject extends Step {
  readonly which: number;
  constructor(agent: number, which: number) {
    super(agent);
    this.which = which;
  }
  async run(model: Model, real: Real) {
    const item = pick(model.known(this.agent), this.which);
    if (!item || isDying(item)) return;
    const body = { delivery_ids: [item.id!], reason: "by the model" };
    const { dead_lettered } = await real.agents[this.agent]!.ask("delivery.reject", { body });
    expect(dead_lettered).toBe(item.state === "pending" ? 1 : 0);
    if (item.state === "pending") item.state = "dead";
  }
}

class Replay extends Step {
  readonly which: number;
  constructor(agent: number, which: number) {
    super(agent);
    this.which = which;
  }
  async run(model: Model, real: Real) {
    const item = pick(model.known(this.agent), this.which);
    if (!item || isDying(item)) return;
    const { ask } = real.agents[this.agent]!;
    const replay = () => ask("delivery.replay", { path: { id: item.id! } }).then(() => "replayed", codeOf);
    if (item.state !== "dead") return void expect(await replay()).toBe("not_found");
    expect(await eventually(async () => await replay() === "replayed" && "replayed", "the replay")).toBe("replayed");
    const at = now();
    Object.assign(item, { state: "pending", attempt: 0, freeFrom: at, surelyFreeFrom: at });
    // A replay goes to the end of its line.
    (item as { order: number }).order = real.order++;
  }
}

class LetTimePass extends Step {
  async run(model: Model) {
    await new Promise((done) => setTimeout(done, VISIBILITY_MS + 2 * SLACK_MS));
    // What was on its last attempt and not extended is dead now, seen or not.
    for (const item of model.items) if (isLast(item) && item.surelyFreeFrom + SLACK_MS <= now()) item.state = "dead";
  }
}

const codeOf = (thrown: unknown) => thrown instanceof Fault ? thrown.code : String(thrown);

/** In the end everything is acknowledged or dead, and is found where it belongs. */
async function settle(model: Model, { agents }: Real) {
  for (const [n, agent] of agents.entries()) {
    const pending = () => model.of(n).filter((item) => item.state === "pending");
    const deadLetters = async () => (await agent.ask("delivery.dead_letters", { query: { limit: 200 } })).dlq_items;
    await eventually(
      async () => {
        for (const delivery of await agent.poll(100)) {
          const item = model.of(n).find(({ event }) => event === delivery.event_id)!;
          expect(item.state).toBe("pending");
          item.id ??= delivery.id;
          expect(delivery.id).toBe(item.id);
          if (await agent.ack([delivery.id]) === 1) item.state = "acknowledged";
        }
        const dead = new Set((await deadLetters()).map((each) => each.event_id));
        for (const item of pending()) if (isLast(item) && dead.has(item.event)) item.state = "dead";
        const expected = model.of(n).filter((item) => item.state === "dead").map((item) => item.event);
        return pending().length === 0 && expected.length === dead.size && expected.every((event) => dead.has(event));
      },
      "everything to end",
      20_000,
    );
    const recent = (await agent.ask("delivery.recent", { path: { id: agent.id }, query: { limit: 100 } })).events;
    const acknowledged = model.of(n).filter((item) => item.state === "acknowledged").map((item) => item.event);
    expect(new Set(recent.map((each) => each.event_id))).toEqual(new Set(acknowledged));
  }
}

let p: Post;
beforeAll(async () => {
  p = await post({ replicas: 2, visibilitySeconds: VISIBILITY_MS / 1_000, maxAttempts: MAX_ATTEMPTS });
});
afterAll(() => p?.[Symbol.asyncDispose]());

test("the queue does what its model does", async () => {
  const agent = fc.nat({ max: 2 });
  const which = fc.nat({ max: 30 });
  const commands = fc.commands([
    fc.tuple(agent, fc.constantFrom(0, 0, 0, 3, 8)).map((args) => new Send(...args)),
    fc.tuple(agent, fc.constantFrom(0, 0, 0, 3, 8)).map((args) => new Send(...args)),
    fc.tuple(agent, fc.integer({ min: 1, max: 6 })).map((args) => new Poll(...args)),
    fc.tuple(agent, fc.integer({ min: 1, max: 6 })).map((args) => new Poll(...args)),
    fc.tuple(agent, which, fc.integer({ min: 1, max: 4 })).map((args) => new Ack(...args)),
    fc.tuple(agent, which, fc.constantFrom(0, 0, 2)).map((args) => new Hold(...args)),
    fc.tuple(agent, which).map((args) => new Reject(...args)),
    fc.tuple(agent, which).map((args) => new Replay(...args)),
    agent.map((n) => new LetTimePass(n)),
  ], { maxCommands: STEPS, size: "max" });
  await fc.assert(
    fc.asyncProperty(commands, async (steps) => {
      const model = new Model();
      const real: Real = { post: p, agents: [p.agent(), p.agent(), p.agent()], order: 0 };
      await fc.asyncModelRun(() => ({ model, real }), steps);
      await settle(model, real);
    }),
    // A failing run is shown as it was: with leases in it, running it again is another run.
    { numRuns: RUNS, endOnFailure: true },
  );
}, 60_000 + RUNS * STEPS * 2_000);
