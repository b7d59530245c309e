/**
 * Idempotency-Key → first answer. The first request claims the key in a bucket that all gateways share, works, and
 * leaves its answer there; a repetition gets that answer, or waits for it.
 *
 * A gateway that dies in between leaves a claim. Once that is past its time, the next try takes it over with the same
 * seed, so that whatever the first one created is met again rather than made twice.
 */
import { createHash, type KeyObject } from "node:crypto";
import type { KV } from "@nats-io/kv";
import { Fault, unavailable } from "../contracts/errors.ts";
import { type TenantCaller, ulid } from "../contracts/identity.ts";
import { deadlineOf, type Operation } from "../contracts/operation.ts";
import { isLive, lostRace } from "../runtime/buckets.ts";
import type { Log } from "../runtime/log.ts";
import { seal, unseal } from "../runtime/secret.ts";
import type { Reply } from "./envelope.ts";

/** What identifies a request: the same key, caller, method and path with another body is a conflict. */
export interface Keyed {
  readonly idempotencyKey: string;
  readonly caller: TenantCaller;
  readonly method: string;
  readonly path: string;
  readonly body: Uint8Array;
  readonly operation: Operation;
}

export interface Idempotency {
  /** Runs `work` once per key; `work` gets the seed that names what it creates. */
  once(request: Keyed, work: (seed: string) => Promise<Reply>): Promise<{ reply: Reply; replayed: boolean }>;
}

interface Claim {
  readonly v: 1;
  readonly state: "running";
  readonly hash: string;
  readonly seed: string;
  /** When another may take the work over, in milliseconds. */
  readonly until: number;
}
interface Kept {
  readonly v: 1;
  readonly state: "done";
  readonly hash: string;
  readonly status: number;
  /** In base64; sealed where the answer carries a secret. */
  readonly body: string | null;
  readonly sealed: boolean;
  readonly resourceId: string | null;
}

/** Between a claim's deadline and its take-over: the first try may still be writing its answer. */
const GRACE_MS = 2_000;
const POLL_MS = [10, 20, 40, 80, 100] as const;

export function idempotency(deps: {
  readonly kv: Pick<KV, "get" | "create" | "update" | "purge">;
  readonly sealingKey: KeyObject;
  readonly log: Log;
}): Idempotency {
  const { kv, sealingKey, log } = deps;
  /** Repetitions that reach the same gateway wait for the first one here, without asking the bucket. */
  const running = new Map<string, { hash: string; reply: Promise<Reply> }>();

  const work = async (
    slot: string,
    claim: Claim,
    revision: number,
    request: Keyed,
    run: (seed: string) => Promise<Reply>,
  ) => {
    const reply = run(claim.seed);
    running.set(slot, { hash: claim.hash, reply });
    try {
      await settle(slot, claim, revision, request, await reply);
      return await reply;
    } finally {
      running.delete(slot);
    }
  };

  /**
   * Keeps the answer. A malformed request has done nothing, so its key is free again. A failure on our side may have left
   * something half-done: its claim stays, open to whoever comes next, so that the retry runs under the same seed.
   */
  const settle = async (slot: string, claim: Claim, revision: number, request: Keyed, reply: Reply) => {
    try {
      if (reply.status === 400) return await kv.purge(slot, { previousSeq: revision });
      if (!isKept(reply)) {
        return void await kv.update(slot, JSON.stringify({ ...claim, until: 0 } satisfies Claim), revision);
      }
      const sealed = request.operation.secret === true;
      const kept: Kept = {
        v: 1,
        state: "done",
        hash: claim.hash,
        status: reply.status,
        body: reply.body ? (sealed ? seal(sealingKey, reply.body) : Buffer.from(reply.body)).toString("base64") : null,
        sealed,
        resourceId: resourceIn(reply),
      };
      await kv.update(slot, JSON.stringify(kept), revision);
    } catch (error) {
      // The work is done and the caller is answered; a repetition will take the claim over and meet what was made.
      log.warn("idempotency.not_kept", { error });
    }
  };

  return {
    async once(request, run) {
      const slot = slotOf(request);
      const hash = createHash("sha256").update(request.body).digest("base64");
      const deadlineMs = deadlineOf(request.operation);
      const giveUpAt = Date.now() + deadlineMs;
      for (let round = 0;; round++) {
        const here = running.get(slot);
        if (here) {
          if (here.hash !== hash) throw differentBody(request, null);
          const reply = await Promise.race([here.reply, sleep(giveUpAt - Date.now())]);
          if (reply && isKept(reply)) return { reply, replayed: true };
          if (reply) return { reply, replayed: false }; // the same failure, told to everyone who waited for it
          throw stillRunning(request);
        }
        const claim: Claim = { v: 1, state: "running", hash, seed: ulid(), until: Date.now() + deadlineMs + GRACE_MS };
        const claimed = await tryClaim(kv, slot, claim);
        if (claimed !== undefined) return { reply: await work(slot, claim, claimed, request, run), replayed: false };

        const entry = await kv.get(slot).catch(away);
        if (isLive(entry)) {
          const found = entry.json<Claim | Kept>();
          if (found.hash !== hash) throw differentBody(request, found.state === "done" ? found.resourceId : null);
          if (found.state === "done") return { reply: restore(found, sealingKey), replayed: true };
          if (found.until < Date.now()) {
            const over: Claim = { ...claim, seed: found.seed };
            const revision = await kv.update(slot, JSON.stringify(over), entry.revision).catch(onLostRace);
            if (revision !== undefined) {
              return { reply: await work(slot, over, revision, request, run), replayed: false };
            }
          }
        }
        if (Date.now() >= giveUpAt) throw stillRunning(request);
        await sleep(POLL_MS[Math.min(round, POLL_MS.length - 1)]!);
      }
    },
  };
}

const tryClaim = (kv: Pick<KV, "create">, slot: string, claim: Claim): Promise<number | undefined> =>
  kv.create(slot, JSON.stringify(claim)).catch(onLostRace);

function onLostRace(error: unknown): undefined {
  if (!lostRace(error)) away(error);
}
function away(error: unknown): never {
  throw unavailable("Idempotency keys cannot be looked up; try again shortly", error);
}

/** A server's failure and a malformed request are not the answer to keep: both may be mended under the same key. */
const isKept = ({ status }: Reply): boolean => status < 500 && status !== 400;

const slotOf = ({ idempotencyKey, caller, method, path }: Keyed): string =>
  createHash("sha256").update(JSON.stringify([caller.tenant, caller.kind, caller.id, method, path, idempotencyKey]))
    .digest("hex");

const restore = ({ status, body, sealed }: Kept, key: KeyObject): Reply => {
  const bytes = body === null ? undefined : Buffer.from(body, "base64");
  return { status, body: bytes && sealed ? unseal(key, bytes) : bytes };
};

function resourceIn({ status, body }: Reply): string | null {
  if (!body || status >= 300) return null;
  const { id } = JSON.parse(new TextDecoder().decode(body)) as { id?: unknown };
  return typeof id === "string" ? id : null;
}

const differentBody = ({ idempotencyKey }: Keyed, existing_resource_id: string | null) =>
  new Fault("conflict", "This Idempotency-Key was used with a different body", {
    idempotency_key: idempotencyKey,
    existing_resource_id,
  });

const stillRunning = ({ idempotencyKey }: Keyed) =>
  new Fault("conflict", "The first request with this Idempotency-Key is still running", {
    idempotency_key: idempotencyKey,
    existing_resource_id: null,
    retry_after_seconds: 1,
  });

const sleep = (ms: number) =>
  new Promise<undefined>((resolve) => setTimeout(() => resolve(undefined), Math.max(0, ms)));
