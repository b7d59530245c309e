/**
 * Sliding windows of 60 s, shared by all gateways. One record per agent and per tenant counts what was admitted in each
 * second; a gateway takes a small lease of the current second by compare-and-set and admits from it. A lease ends with
 * its second, and the oldest second is counted whole, so no 60 s ever hold more than the limit, however many gateways.
 */
import type { KV } from "@nats-io/kv";
import { Fault } from "../contracts/errors.ts";
import { isLive, lostRace } from "../runtime/buckets.ts";
import type { Log } from "../runtime/log.ts";
import { measure } from "../runtime/measure.ts";
import { type Counts, grantIn, prune, resetAfter, total, WINDOW_SECONDS } from "./window.ts";

/** Where a caller stands, for the X-RateLimit headers. */
export interface Standing {
  readonly limit: number;
  readonly remaining: number;
  readonly resetSeconds: number;
}

export interface Limit {
  readonly key: string;
  readonly perMinute: number;
  readonly label: "agent" | "tenant" | "address";
}

export interface RateLimiter {
  /** Admits a request under every given limit, or throws `rate_limited`. Answers the standing under the tighter one. */
  admit(limits: readonly Limit[]): Promise<Standing | undefined>;
}

interface Window {
  counts: Counts;
  revision: number;
  /** The second the lease is for, and what is left of it. */
  second: number;
  left: number;
  /** How many this gateway admitted in the last second it was asked, to size the next lease. */
  pace: number;
  waiting: number;
  leasing: Promise<void> | undefined;
  usedAtMs: number;
}

const MAX_RACES = 50;
const IDLE_MS = 120_000;

export function rateLimiter(deps: {
  readonly kv: Pick<KV, "get" | "create" | "update">;
  readonly replicas: number;
  readonly log: Log;
  readonly now?: () => number;
}): RateLimiter {
  const { kv, replicas, log, now = Date.now } = deps;
  const windows = new Map<string, Window>();
  let sweptAtMs = now();

  const windowOf = (key: string): Window => {
    if (now() - sweptAtMs > IDLE_MS) {
      sweptAtMs = now();
      for (const [k, w] of windows) if (now() - w.usedAtMs > IDLE_MS && w.waiting === 0) windows.delete(k);
    }
    let window = windows.get(key);
    if (!window) {
      window = {
        counts: new Map(),
        revision: 0,
        second: 0,
        left: 0,
        pace: 0,
        waiting: 0,
        leasing: undefined,
        usedAtMs: 0,
      };
      windows.set(key, window);
    }
    window.usedAtMs = now();
    return window;
  };

  /** Writes a lease into the shared record; on a lost race reads the winner's record and tries again. */
  const lease = async (key: string, limit: number, window: Window): Promise<void> => {
    for (let race = 0; race < MAX_RACES; race++) {
      const second = Math.floor(now() / 1_000);
      const counts = prune(new Map(window.counts), second);
      // What the last lease did not use goes back, as long as its second still counts.
      if (window.left > 0 && counts.has(window.second)) {
        counts.set(window.second, counts.get(window.second)! - window.left);
      }
      const wanted = Math.max(window.waiting, Math.ceil(window.pace / 4));
      const granted = grantIn(counts, second, limit, wanted, window.waiting);
      if (granted === 0 && window.left === 0) return settle(window, counts, window.revision, second, 0);
      counts.set(second, (counts.get(second) ?? 0) + granted);
      try {
        const record = JSON.stringify([...counts]);
        const revision = window.revision === 0
          ? await kv.create(key, record)
          : await kv.update(key, record, window.revision);
        return settle(window, counts, revision, second, granted);
      } catch (error) {
        if (!lostRace(error)) throw error;
        const entry = await kv.get(key);
        window.counts = isLive(entry) ? new Map(entry.json<[number, number][]>()) : new Map();
        window.revision = isLive(entry) ? entry.revision : 0;
        // The winner's record knows nothing of what we hold: it is counted there already.
      }
    }
    throw new Error(`The rate limit of ${key} was contended ${MAX_RACES} times`);
  };

  const settle = (window: Window, counts: Counts, revision: number, second: number, granted: number) => {
    window.pace = second - window.second <= 1 ? window.pace : 0;
    Object.assign(window, { counts, revision, second, left: granted });
  };

  const take = async ({ key, perMinute }: Limit): Promise<Standing | undefined> => {
    const window = windowOf(key);
    for (;;) {
      const second = Math.floor(now() / 1_000);
      if (window.second === second && window.left > 0) {
        window.left--;
        window.pace++;
        const used = total(window.counts) - window.left;
        return {
          limit: perMinute,
          remaining: Math.max(0, perMinute - used),
          resetSeconds: resetAfter(window.counts, second),
        };
      }
      if (window.second === second && !window.leasing && isFull(window, perMinute, second)) return undefined;
      window.waiting++;
      try {
        await (window.leasing ??= lease(key, perMinute, window).finally(() => window.leasing = undefined));
      } finally {
        window.waiting--;
      }
      if (window.second === second && window.left === 0 && isFull(window, perMinute, second)) return undefined;
    }
  };

  /** While the broker is away each gateway admits its equal share, counted alone. */
  const takeAlone = (limit: Limit, error: unknown): Standing | undefined => {
    log.warn("rate_limit.authority_away", { error });
    const second = Math.floor(now() / 1_000);
    const window = windowOf(`alone:${limit.key}`);
    const share = Math.max(1, Math.floor(limit.perMinute / replicas));
    window.counts = prune(window.counts, second);
    if (total(window.counts) >= share) return undefined;
    window.counts.set(second, (window.counts.get(second) ?? 0) + 1);
    const remaining = share - total(window.counts);
    return { limit: limit.perMinute, remaining, resetSeconds: resetAfter(window.counts, second) };
  };

  return {
    async admit(limits) {
      let tightest: Standing | undefined;
      for (const [i, limit] of limits.entries()) {
        if (limit.perMinute === 0) continue;
        const standing = await take(limit).catch((error) => takeAlone(limit, error));
        if (!standing) {
          // What an earlier limit admitted was not used after all.
          for (const earlier of limits.slice(0, i)) if (earlier.perMinute > 0) windowOf(earlier.key).left++;
          measure().limited.add(1, { limit: limit.label });
          throw limited(limit, windowOf(limit.key), Math.floor(now() / 1_000));
        }
        if (!tightest || standing.remaining < tightest.remaining) tightest = standing;
      }
      return tightest;
    },
  };
}

const isFull = (window: Window, limit: number, second: number) => total(prune(new Map(window.counts), second)) >= limit;

const limited = ({ perMinute, label }: Limit, window: Window, second: number) =>
  new Fault("rate_limited", `More than ${perMinute} requests in ${WINDOW_SECONDS} s for this ${label}`, {
    retry_after_seconds: resetAfter(window.counts, second),
    limit: perMinute,
    window_seconds: WINDOW_SECONDS,
  });

/** The same headers on an answer and on a refusal. */
export const limitHeaders = ({ limit, remaining, resetSeconds }: Standing): Record<string, string> => ({
  "x-ratelimit-limit": String(limit),
  "x-ratelimit-remaining": String(remaining),
  "x-ratelimit-reset": String(resetSeconds),
});
