/** What a user can do to the queues, as commands that fast-check puts together: done for real, then told to the model. */
import fc from "fast-check";
import { eventually } from "../support/eventually.ts";
import type { Answer, TestTenant, World } from "../support/world.ts";
import { type Listener, type Published, QueueModel, type SeenDelivery, type Span } from "./queue.model.ts";

/** Three agents in a tenant of their own, and a fourth that receives everything and tells how far fan-out has come. */
export interface Scene {
  readonly model: QueueModel;
  readonly real: Real;
}

export class Real {
  readonly world: World;
  readonly tenant: TestTenant;
  readonly agents: { readonly id: string; readonly key: string; token: string }[];
  readonly scout: { readonly token: string; readonly seen: Set<string> };

  constructor(world: World, tenant: TestTenant, agents: Real["agents"], scoutToken: string) {
    this.world = world;
    this.tenant = tenant;
    this.agents = agents;
    this.scout = { token: scoutToken, seen: new Set() };
  }

  async request(
    model: QueueModel,
    who: string,
    method: string,
    path: string,
    request: Parameters<World["request"]>[2],
    gateway: number,
  ): Promise<{ answer: Answer; span: Span }> {
    const from = performance.now();
    const answer = await this.world.request(method, path, request, gateway);
    const span = { from, to: performance.now() };
    if (answer.status === 503 && span.to - from > STALLED_MS) throw new Stalled();
    model.trace.push(
      `${Math.round(from)}-${Math.round(span.to)} ${who} ${method} ${path} ${
        request?.body === undefined ? "" : JSON.stringify(request.body)
      } -> ${answer.status} ${brief(answer.body)}`,
    );
    return { answer, span };
  }

  as(model: QueueModel, agent: number, method: string, path: string, body: unknown, gateway: number) {
    const { token } = this.agents[agent]!;
    return this.request(model, `agent ${agent}`, method, path, { token, body }, gateway);
  }

  /** Fan-out has decided on every event so far. */
  async fannedOut(model: QueueModel): Promise<void> {
    const { token, seen } = this.scout;
    await eventually(
      async () => {
        if (model.published.keys().every((id) => seen.has(id))) return true;
        const { body } = await this.world.request("GET", "/delivery/poll?limit=100&wait=2", { token });
        const deliveries = body.deliveries as SeenDelivery[];
        for (const { event_id } of deliveries) seen.add(event_id);
        const delivery_ids = deliveries.map(({ id }) => id);
        if (delivery_ids.length > 0) {
          await this.world.request("POST", "/delivery/ack", { token, body: { delivery_ids } });
        }
        return false;
      },
      "fan-out to come to the last event",
      60_000,
    );
  }
}

/** No answer came in its time. A machine that cannot give one in seconds says nothing about the queue. */
export class Stalled extends Error {}
const STALLED_MS = 2_000;

const brief = (body: unknown): string =>
  JSON.stringify(
    body,
    (key, value) => ["payload", "created_at", "dead_lettered_at", "data"].includes(key) ? "…" : value,
  )
    ?.slice(0, 600) ?? "";

const kinds: { type: string; heardBy: Record<number, { priority: number; filter?: string }> }[] = [
  { type: "com.a.made", heardBy: { 0: { priority: 0 }, 1: { priority: 0 } } },
  { type: "com.b.made", heardBy: { 1: { priority: 5 }, 2: { priority: 0 } } },
  { type: "com.c.made", heardBy: { 0: { priority: 2 }, 2: { priority: 0, filter: "data.n > 4" } } },
];

export async function scene(world: World): Promise<Scene> {
  const tenant = await world.tenant();
  const [scout, ...agents] = await Promise.all(Array.from({ length: 4 }, () => tenant.agent()));
  const listen = async (
    { id, call }: NonNullable<typeof scout>,
    event_type: string,
    priority: number,
    filter_expression?: string,
  ) =>
    (await call("interests.create", {
      path: { id },
      body: { event_type, priority, filter_expression, enrichment_depth: "none" },
    })).id;
  await listen(scout!, "*", 0);
  const listeners: Listener[][] = [[], [], []];
  for (const { type, heardBy } of kinds) {
    for (const [agent, { priority, filter }] of Object.entries(heardBy)) {
      const interestId = await listen(agents[Number(agent)]!, type, priority, filter);
      const matches = (event: Published) => event.type === type && (!filter || event.data.n > 4);
      listeners[Number(agent)]!.push({ interestId, priority, matches });
    }
  }
  const real = new Real(world, tenant, agents.map(({ id, key, token }) => ({ id, key, token })), scout!.token);
  return { model: new QueueModel(listeners), real };
}

type Command = fc.AsyncCommand<QueueModel, Real>;
const command = (
  name: string,
  run: (model: QueueModel, real: Real) => Promise<void>,
  check: (model: QueueModel) => boolean = () => true,
): Command => ({ check, run, toString: () => name });

function publish(kind: number, numbers: number[], repeat: boolean, gateway: number): Command {
  return command(`publish(${kind}, [${numbers}]${repeat ? ", again" : ""})`, async (model, real) => {
    const { type } = kinds[kind]!;
    const old = [...model.published.values()].at(-1);
    const events = numbers.map((n, i): Published => ({ id: `e${model.published.size + i}`, type, data: { n } }));
    if (repeat && old) events.push(old);
    const { answer } = await real.request(model, "admin", "POST", "/events", {
      token: real.tenant.adminToken,
      body: events.map((event) => ({ specversion: "1.0", source: "urn:model", ...event })),
      headers: { "content-type": "application/cloudevents-batch+json" },
    }, gateway);
    const results = answer.body.results as { event_id: string; status: string }[];
    if (answer.status !== 202 || results.length !== events.length) model.diverge("a publish was not answered 202");
    for (const [i, { status }] of results.entries()) model.accepted(events[i]!, status);
  });
}

const seen = (answer: Answer) => answer.body.deliveries as SeenDelivery[];

function poll(agent: number, limit: number, workers: number, gateway: number): Command {
  return command(`poll(${agent}, ${limit}, ${workers} workers)`, async (model, real) => {
    const polls = await Promise.all(
      Array.from(
        { length: workers },
        (_, worker) => real.as(model, agent, "GET", `/delivery/poll?limit=${limit}`, undefined, (gateway + worker) % 2),
      ),
    );
    if (refused(model, agent, ...polls.map(({ answer }) => answer))) return;
    // Whichever worker was first: the earlier attempt of a delivery is told first.
    polls.sort((a, b) => Math.max(0, ...attempts(a.answer)) - Math.max(0, ...attempts(b.answer)));
    for (const { answer, span } of polls) model.polled(agent, span, limit, seen(answer));
  });
}
const attempts = (answer: Answer) => seen(answer).map(({ attempt_count }) => attempt_count);

/** What must come by itself comes to whoever waits for it. */
function await_(agent: number, limit: number, gateway: number): Command {
  return command(
    `await(${agent}, ${limit})`,
    (model, real) =>
      eventually(
        async () => {
          const { answer, span } = await real.as(
            model,
            agent,
            "GET",
            `/delivery/poll?limit=${limit}&wait=20`,
            undefined,
            gateway,
          );
          if (refused(model, agent, answer)) return true;
          model.polled(agent, span, limit, seen(answer));
          return seen(answer).length > 0;
        },
        "a delivery that must come",
        60_000,
      ).then(() => {}, (error) => model.diverge(String(error))),
    (model) => !model.inactive.has(agent) && model.mustCome(agent),
  );
}

const idsOf = (model: QueueModel, agent: number, picks: number[]): string[] => {
  const known = model.known(agent);
  return [...new Set(picks.map((pick) => known[pick % known.length]!.id!))];
};
const isKnown = (agent: number) => (model: QueueModel) => model.known(agent).length > 0;

function acknowledge(agent: number, picks: number[], racers: number, thief: number, gateway: number): Command {
  return command(`ack(${agent}, [${picks}], ${racers} at once)`, async (model, real) => {
    const delivery_ids = idsOf(model, agent, picks);
    if (thief !== agent && !model.inactive.has(thief)) {
      const { answer } = await real.as(model, thief, "POST", "/delivery/ack", { delivery_ids }, gateway);
      if (answer.body.acknowledged !== 0) model.diverge(`agent ${thief} acknowledged deliveries of agent ${agent}`);
    }
    const acks = await Promise.all(
      Array.from(
        { length: racers },
        (_, racer) => real.as(model, agent, "POST", "/delivery/ack", { delivery_ids }, (gateway + racer) % 2),
      ),
    );
    if (refused(model, agent, ...acks.map(({ answer }) => answer))) return;
    const span = { from: Math.min(...acks.map((a) => a.span.from)), to: Math.max(...acks.map((a) => a.span.to)) };
    const sum = acks.reduce((sum, { answer }) => sum + answer.body.acknowledged, 0);
    model.acknowledged(agent, span, delivery_ids, sum);
  }, isKnown(agent));
}

function hold(verb: "nack" | "extend", agent: number, picks: number[], seconds: number, gateway: number): Command {
  return command(`${verb}(${agent}, [${picks}], ${seconds} s)`, async (model, real) => {
    const delivery_ids = idsOf(model, agent, picks);
    const body = verb === "nack" ? { delivery_ids, delay_seconds: seconds } : { delivery_ids, seconds };
    const { answer, span } = await real.as(model, agent, "POST", `/delivery/${verb}`, body, gateway);
    if (refused(model, agent, answer)) return;
    model.held(agent, span, delivery_ids, answer.body.released ?? answer.body.extended, seconds * 1_000);
  }, isKnown(agent));
}

function reject(agent: number, picks: number[], gateway: number): Command {
  return command(`reject(${agent}, [${picks}])`, async (model, real) => {
    const delivery_ids = idsOf(model, agent, picks);
    const reason = `no use ${model.trace.length}`;
    const { answer, span } = await real.as(model, agent, "POST", "/delivery/reject", { delivery_ids, reason }, gateway);
    if (refused(model, agent, answer)) return;
    model.rejected(agent, span, delivery_ids, answer.body.dead_lettered, reason);
  }, isKnown(agent));
}

function listDead(agent: number, gateway: number): Command {
  return command(`deadLetters(${agent})`, async (model, real) => {
    const { answer, span } = await real.as(model, agent, "GET", "/delivery/dlq?limit=200", undefined, gateway);
    if (refused(model, agent, answer)) return;
    model.deadLetters(agent, span, answer.body.dlq_items, answer.body.total);
  });
}

function replay(agent: number, pick: number, byAdmin: boolean, repeat: boolean, gateway: number): Command {
  return command(`replay(${agent}, ${pick}${repeat ? ", twice" : ""})`, async (model, real) => {
    const known = model.known(agent);
    const dead = known.filter(({ fates }) => fates.some(({ is }) => is === "dead"));
    const { id } = (dead.length > 0 ? dead : known)[pick % (dead.length || known.length)]!;
    const token = byAdmin ? real.tenant.adminToken : real.agents[agent]!.token;
    const headers = { "idempotency-key": `key ${model.trace.length}` };
    const ask = () =>
      real.request(model, `${byAdmin ? "admin" : `agent ${agent}`}, by key`, "POST", `/delivery/dlq/${id}/replay`, {
        token,
        headers,
      }, gateway);
    const [first, second] = await Promise.all([ask(), ...(repeat ? [ask()] : [])]);
    if (!byAdmin && refused(model, agent, first!.answer)) return;
    if (second && JSON.stringify(second.answer.body?.status) !== JSON.stringify(first!.answer.body?.status)) {
      model.diverge("a replay under one key was answered in two ways");
    }
    model.replayed(agent, first!.span, id!, first!.answer.status);
  }, isKnown(agent));
}

function recent(agent: number, gateway: number): Command {
  return command(`recent(${agent})`, async (model, real) => {
    const path = `/agents/${real.agents[agent]!.id}/events?limit=100`;
    const { answer, span } = await real.as(model, agent, "GET", path, undefined, gateway);
    if (refused(model, agent, answer)) return;
    model.recent(agent, span, answer.body.events);
  });
}

/** Long enough for leases to end, or not quite. */
function pass(ms: number): Command {
  return command(`wait(${ms} ms)`, async (model) => {
    model.trace.push(`${ms} ms pass`);
    await new Promise((done) => setTimeout(done, ms));
  }, (model) => model.items.length > 0);
}

function turn(agent: number, to: "deactivate" | "activate", gateway: number): Command {
  return command(`${to}(${agent})`, async (model, real) => {
    // What is published before a change of state must have been decided on before it.
    await real.fannedOut(model);
    const { id, key } = real.agents[agent]!;
    const { answer } = await real.request(model, "admin", "POST", `/agents/${id}/${to}`, {
      token: real.tenant.adminToken,
    }, gateway);
    if (answer.status !== 200) model.diverge(`${to} was answered ${answer.status}`);
    if (to === "deactivate") return void model.inactive.add(agent);
    model.inactive.delete(agent);
    real.agents[agent]!.token = await real.world.token(key, gateway);
  }, (model) => model.inactive.has(agent) === (to === "activate"));
}

/** True when the agent is inactive, and was told so. */
function refused(model: QueueModel, agent: number, ...answers: Answer[]): boolean {
  const isInactive = model.inactive.has(agent);
  for (const { status } of answers) {
    if (isInactive && status !== 401) model.diverge(`inactive agent ${agent} was answered ${status}`);
    if (!isInactive && status >= 400 && status !== 404) model.diverge(`agent ${agent} was answered ${status}`);
  }
  return isInactive;
}

// One of them does most: what happens to a delivery takes many steps.
const agent = fc.constantFrom(1, 1, 1, 0, 2);
const gateway = fc.nat(1);
const limit = fc.integer({ min: 1, max: 4 });
// Small numbers are what was handed out last.
const picks = fc.array(fc.oneof({ arbitrary: fc.nat(3), weight: 3 }, fc.nat(20)), { minLength: 1, maxLength: 4 });
const kind = fc.nat(kinds.length - 1);
const numbers = fc.array(fc.nat(9), { minLength: 1, maxLength: 4 });

const often = (times: number, step: fc.Arbitrary<Command>) => Array.from({ length: times }, () => step);

export const commands = (most: number, replayPath?: string) =>
  fc.commands([
    ...often(3, fc.tuple(kind, numbers, fc.boolean(), gateway).map((a) => publish(...a))),
    ...often(3, fc.tuple(agent, limit, fc.integer({ min: 1, max: 2 }), gateway).map((a) => poll(...a))),
    ...often(6, fc.tuple(agent, limit, gateway).map((a) => await_(...a))),
    ...often(2, fc.tuple(agent, picks, fc.integer({ min: 1, max: 3 }), agent, gateway).map((a) => acknowledge(...a))),
    ...often(2, fc.tuple(agent, picks, fc.constantFrom(0, 0, 0.5, 1.5), gateway).map((a) => hold("nack", ...a))),
    ...often(1, fc.tuple(agent, picks, fc.constantFrom(1, 2), gateway).map((a) => hold("extend", ...a))),
    ...often(2, fc.tuple(agent, picks, gateway).map((a) => reject(...a))),
    ...often(2, fc.tuple(agent, gateway).map((a) => listDead(...a))),
    ...often(3, fc.tuple(agent, fc.nat(9), fc.boolean(), fc.boolean(), gateway).map((a) => replay(...a))),
    ...often(1, fc.tuple(agent, gateway).map((a) => recent(...a))),
    ...often(1, fc.constantFrom(300, 900, 1_300).map(pass)),
    ...often(1, fc.tuple(agent, gateway).map(([agent, gateway]) => turn(agent, "deactivate", gateway))),
    ...often(4, fc.tuple(agent, gateway).map(([agent, gateway]) => turn(agent, "activate", gateway))),
  ], { maxCommands: most, size: "max", ...(replayPath ? { replayPath } : {}) });

/** Everything comes to an end, and then nothing comes any more. */
export async function drain(model: QueueModel, real: Real): Promise<void> {
  for (const agent of [...model.inactive]) await turn(agent, "activate", 0).run(model, real);
  const agents = [0, 1, 2];
  await eventually(
    async () => {
      for (const agent of agents) {
        const { answer, span } = await real.as(model, agent, "GET", "/delivery/poll?limit=100", undefined, agent % 2);
        model.polled(agent, span, 100, seen(answer));
        const delivery_ids = seen(answer).map(({ id }) => id);
        if (delivery_ids.length > 0) {
          const acked = await real.as(model, agent, "POST", "/delivery/ack", { delivery_ids }, 1);
          model.acknowledged(agent, acked.span, delivery_ids, acked.answer.body.acknowledged);
        }
        await listDead(agent, 0).run(model, real);
      }
      return model.isSettled();
    },
    "every delivery to end",
    60_000,
  ).catch((error) => model.diverge(String(error)));
  await Promise.all(agents.map(async (agent) => {
    const { answer, span } = await real.as(model, agent, "GET", "/delivery/poll?wait=1.2", undefined, 0);
    model.polled(agent, span, 10, seen(answer));
    await listDead(agent, 1).run(model, real);
    await recent(agent, 1).run(model, real);
  }));
}
