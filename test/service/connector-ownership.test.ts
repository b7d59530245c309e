/** Who reads a connector: one at a time, and another when that one is silent for a lease. The clock is the test's. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { ulid } from "../../contracts/identity.ts";
import { buckets } from "../../contracts/streams.ts";
import { openBucket } from "../../runtime/buckets.ts";
import { type Bus, connectBus } from "../../runtime/bus.ts";
import { silent } from "../../runtime/log.ts";
import { type Ownership, ownership } from "../../services/connector/ownership.ts";
import { type Broker, broker } from "../support/servers.ts";

let server: Broker;
let bus: Bus;
let now = 0;
const LEASE_MS = 10_000;

beforeAll(async () => {
  server = await broker();
  bus = await connectBus(server.url, "test", silent);
});
afterAll(async () => {
  await bus?.[Symbol.asyncDispose]();
  await server?.[Symbol.asyncDispose]();
});

const as = async (owner: string): Promise<Ownership> =>
  ownership({ states: await openBucket(bus.nc, buckets.connectorStates), owner, leaseMs: LEASE_MS, now: () => now });
const fresh = () => `con_${ulid()}`;

test("the first to come owns it, and nobody else while it writes", async () => {
  const [a, b, id] = [await as("a"), await as("b"), fresh()];
  const claim = (await a.claim(id))!;
  for (let i = 0; i < 5; i++) {
    expect(await b.claim(id)).toBeUndefined();
    now += LEASE_MS * 0.9;
    expect(await claim.write()).toBe(true);
  }
});

test("of many at once one gets it", async () => {
  const id = fresh();
  const claims = await Promise.all(
    Array.from({ length: 10 }, async (_, n) => (await as(`p${n}`)).claim(id)),
  );
  expect(claims.filter((claim) => claim !== undefined)).toHaveLength(1);
});

test("an owner that is silent for a lease is replaced, counts go on, and its next write is refused", async () => {
  const [a, b, id] = [await as("a"), await as("b"), fresh()];
  const old = (await a.claim(id))!;
  old.state = { ...old.state, accepted: 41, status: "connected" };
  await old.write();
  expect(await b.claim(id)).toBeUndefined();
  now += LEASE_MS;
  expect(await b.claim(id)).toBeUndefined();
  now += 1;
  const taken = (await b.claim(id))!;
  expect(taken.state).toMatchObject({ owner: "b", accepted: 41, status: "connecting" });
  expect(await old.write()).toBe(false);
  expect(await taken.write()).toBe(true);
});

test("an owner that lets go is replaced at once", async () => {
  const [a, b, id] = [await as("a"), await as("b"), fresh()];
  const claim = (await a.claim(id))!;
  claim.state = { ...claim.state, rejected: 3 };
  const [wrote] = await Promise.all([claim.write(), claim.release("waiting")]);
  expect(wrote).toBe(true);
  expect((await b.claim(id))!.state).toMatchObject({ owner: "b", rejected: 3 });
});

test("one that is forgotten starts from nothing", async () => {
  const [a, b, id] = [await as("a"), await as("b"), fresh()];
  const claim = (await a.claim(id))!;
  claim.state = { ...claim.state, accepted: 9 };
  await claim.write();
  await b.forget(id);
  expect(await claim.write()).toBe(false);
  expect((await b.claim(id))!.state.accepted).toBe(0);
});
