import { describe, expect, test } from "vitest";
import { unavailable } from "../../contracts/errors.ts";
import type { Taken } from "../../runtime/consume.ts";
import { silent } from "../../runtime/log.ts";
import { filters } from "../../services/fanout/filter.ts";
import { tenantRoutes } from "../../services/fanout/match.ts";
import { type Letter, MAX_ATTEMPTS, type SpreadDeps, spreader } from "../../services/fanout/spread.ts";

const event = { specversion: "1.0", type: "x", source: "s", id: "1" };
const taken = (attempt: number, body: string = JSON.stringify(event), subject = "event.ten_a"): Taken => ({
  subject,
  body: new TextEncoder().encode(body),
  headers: undefined,
  seq: 7,
  attempt,
  storedAtMs: Date.now(),
});

function spreading(more: Partial<SpreadDeps> = {}) {
  const tenant = tenantRoutes(filters());
  tenant.setAgent("a", true);
  tenant.setInterest("a", "i", { event_type: "*", filter_expression: null, priority: 0, enrichment_depth: "none" });
  const letters: Letter[] = [];
  const queued: string[] = [];
  const deps: SpreadDeps = {
    routes: {
      barrier: async () => ({ isHeld: () => true, again: async () => {} }),
      of: () => tenant,
    },
    progress: { fannedAmong: async () => new Set(), note: async () => {} },
    enqueue: async ({ seq }, recipients) => void queued.push(...recipients.map(({ agent }) => `${seq}:${agent}`)),
    bury: async (letter) => void letters.push(letter),
    log: silent,
    ...more,
  };
  const work = spreader(deps);
  return { letters, queued, work: (batch: Taken[]) => work(batch, new AbortController().signal) };
}

const failing = async () => {
  throw unavailable("The stream is away");
};

describe("what becomes of an event", () => {
  test("it is done once its deliveries are queued", async () => {
    const { work, queued } = spreading();
    expect(await work([taken(1)])).toEqual(["done"]);
    expect(queued).toEqual(["7:a"]);
  });
  test("it is noted once its deliveries are queued, and not spread again", async () => {
    const noted: number[] = [];
    const { work, queued } = spreading({
      progress: {
        fannedAmong: async () => new Set(noted),
        note: async (seqs) => void noted.push(...seqs),
      },
    });
    expect(await work([taken(1)])).toEqual(["done"]);
    expect(await work([taken(2)])).toEqual(["done"]);
    expect(noted).toEqual([7]);
    expect(queued).toEqual(["7:a"]);
  });
  test("it comes back later when a queue does not take its delivery, with growing delays", async () => {
    const { work, letters } = spreading({ enqueue: failing });
    expect(await work([taken(1), taken(4)])).toEqual([{ retryInMs: 500 }, { retryInMs: 4_000 }]);
    expect(letters).toEqual([]);
  });
  test("it goes to the dead letters when its last attempt fails, with the reason", async () => {
    const { work, letters } = spreading({ enqueue: failing });
    expect(await work([taken(MAX_ATTEMPTS)])).toEqual(["done"]);
    expect(letters).toMatchObject([{ tenant: "ten_a", seq: 7, attempts: MAX_ATTEMPTS, reason: /stream is away/ }].map(
      (letter) => ({ ...letter, reason: expect.stringMatching(letter.reason) }),
    ));
  });
  test("one that no attempt came to an end with is not tried again", async () => {
    const { work, letters, queued } = spreading();
    expect(await work([taken(MAX_ATTEMPTS + 1)])).toEqual(["done"]);
    expect(letters).toHaveLength(1);
    expect(queued).toEqual([]);
  });
  test.each(["", "{", "null", "[]", `{"id":1}`])("one that reads %j goes to the dead letters at once", async (body) => {
    const { work, letters } = spreading();
    expect(await work([taken(1, body)])).toEqual(["done"]);
    expect(letters).toHaveLength(1);
  });
  test("it stays where it is while the dead letters cannot take it", async () => {
    const { work } = spreading({ bury: failing });
    expect(await work([taken(1, "{"), taken(1)])).toEqual([{ retryInMs: 500 }, "done"]);
  });
  test("attempts together take less time than a repeated delivery is recognised", () => {
    const delays = Array.from({ length: MAX_ATTEMPTS }, (_, i) => Math.min(60_000, 500 * 2 ** i));
    expect(delays.reduce((a, b) => a + b)).toBeLessThan(10 * 60_000);
  });
});

test("a batch waits for the routes without using up attempts, and is given back when the process stops", async () => {
  const stop = new AbortController();
  let asked = 0;
  const { barrier, of } = { barrier: async () => (asked++, failing()), of: () => undefined };
  const progress = { fannedAmong: async () => new Set<number>(), note: failing };
  const work = spreader({ routes: { barrier, of }, progress, enqueue: failing, bury: failing, log: silent });
  const outcome = work([taken(1)], stop.signal);
  while (asked === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  stop.abort();
  expect(await outcome).toEqual([{ retryInMs: 0 }]);
});
