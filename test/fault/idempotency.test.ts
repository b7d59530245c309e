/** A gateway that dies with a request in hand. */
import { createSecretKey, randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import type { TenantCaller } from "../../contracts/identity.ts";
import type { Operation } from "../../contracts/operation.ts";
import { buckets } from "../../contracts/streams.ts";
import { jsonBytes, type Reply } from "../../gateway/envelope.ts";
import { type Idempotency, idempotency } from "../../gateway/idempotency.ts";
import { openBucket } from "../../runtime/buckets.ts";
import { connectBus } from "../../runtime/bus.ts";
import { silent } from "../../runtime/log.ts";
import { broker } from "../support/servers.ts";

const caller: TenantCaller = { kind: "agent", id: "agt_1", tenant: "ten_1", scopes: [], keyId: "key_1" };
const operation: Operation = { service: "registry", summary: "", access: "admin", success: 201 };
const request = (deadlineMs: number) => ({
  idempotencyKey: "k",
  caller,
  method: "POST",
  path: "/v1/agents",
  body: jsonBytes({ name: "n" }),
  operation: { ...operation, deadlineMs },
});
const made = (seed: string): Reply => ({ status: 201, body: jsonBytes({ id: `agt_${seed}` }) });

async function twoGateways() {
  const stack = new AsyncDisposableStack();
  const nats = stack.use(await broker());
  const sealingKey = createSecretKey(randomBytes(32));
  const gateways = [];
  for (const name of ["one", "two"]) {
    const bus = stack.use(await connectBus(nats.url, name, silent));
    gateways.push(idempotency({ kv: await openBucket(bus.nc, buckets.idempotency), sealingKey, log: silent }));
  }
  return { one: gateways[0]!, two: gateways[1]!, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}

/** The work is done, but its answer never comes: that is what a gateway killed in between looks like from outside. */
function killedAt({ once }: Idempotency, deadlineMs: number): Promise<string> {
  return new Promise((begun) => {
    once(request(deadlineMs), (seed) => {
      begun(seed);
      return new Promise<Reply>(() => {});
    }).catch(() => {});
  });
}

test("the next try takes its work over under the same seed, and meets what it left", async () => {
  await using gateways = await twoGateways();
  const seed = await killedAt(gateways.one, 100);
  const { reply } = await gateways.two.once(request(10_000), (seed) => Promise.resolve(made(seed)));
  expect(reply).toEqual(made(seed));
});

test("a repetition waits for the first try only as long as the operation may take, then says when to come back", async () => {
  await using gateways = await twoGateways();
  await killedAt(gateways.one, 60_000);
  const refused = gateways.two.once(request(300), (seed) => Promise.resolve(made(seed)));
  await expect(refused).rejects.toMatchObject({
    code: "conflict",
    details: { idempotency_key: "k", retry_after_seconds: 1 },
  });
});

test("a failure on our side is not kept; the retry runs at once, under the same seed, and its answer is kept", async () => {
  await using gateways = await twoGateways();
  let first: string | undefined;
  const failed = await gateways.one.once(request(60_000), (seed) => {
    first = seed;
    return Promise.resolve({ status: 503, body: jsonBytes({}) });
  });
  expect(failed).toMatchObject({ reply: { status: 503 }, replayed: false });
  // Half-done work of the first try is met again only by the id it was done under.
  const retried = await gateways.two.once(request(60_000), (seed) => Promise.resolve(made(seed)));
  expect(retried).toEqual({ reply: made(first!), replayed: false });
  const again = await gateways.one.once(request(1_000), () => Promise.reject(new Error("not asked again")));
  expect(again.replayed).toBe(true);
  expect(Buffer.from(again.reply.body!).toString()).toBe(Buffer.from(made(first!).body!).toString());
});

test("a malformed request leaves its key free for the mended one", async () => {
  await using gateways = await twoGateways();
  await gateways.one.once(request(1_000), () => Promise.resolve({ status: 400, body: jsonBytes({}) }));
  const mended = { ...request(1_000), body: jsonBytes({ name: "another" }) };
  expect((await gateways.two.once(mended, (seed) => Promise.resolve(made(seed)))).reply.status).toBe(201);
});
