/**
 * What every queue must promise, whatever it is built on. Two handles on one queue stand for two replicas of the
 * service; visibility timeout one second, three attempts. A third one, with a longer timeout, is for leases that must not
 * run out on a slow machine, and for what happens while an operator changes the timeout.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId, ulid } from "../../contracts/identity.ts";
import type { QueuedDelivery } from "../../contracts/pipeline.ts";
import type { AgentRef } from "../../services/delivery/delivery-id.ts";
import type { DeadDelivery, Keep, Lease, Queue } from "../../services/delivery/queue.ts";
import { eventually } from "../support/eventually.ts";

export interface QueueUnderTest extends AsyncDisposable {
  readonly replicas: readonly [Queue, Queue];
  readonly patient: Queue;
  /** Hands what is next to a replica that dies before it has said a word of it. */
  handToDying(owner: AgentRef): Promise<void>;
  /** Kills what the queue rests on and starts it again. */
  crash(): Promise<void>;
}

export const VISIBILITY_MS = 1_000;
export const PATIENT_VISIBILITY_MS = 5_000;
export const MAX_ATTEMPTS = 3;

export function queueConformance(name: string, open: (keep: Keep) => Promise<QueueUnderTest>): void {
  describe(`a queue on ${name}`, () => {
    let under: QueueUnderTest;
    const dead: DeadDelivery[] = [];
    let keepFails = false;
    beforeAll(async () => {
      under = await open(async (items) => {
        if (keepFails) throw new Error("nothing can be kept now");
        dead.push(...items);
      });
    });
    afterAll(() => under?.[Symbol.asyncDispose]());

    let events = 0;
    const someone = (): AgentRef => ({ tenant: newId("tenant"), agent: newId("agent") });
    const either = () => under.replicas[events % 2]!;
    const put = async (owner: AgentRef, priority = 0): Promise<number> => {
      const delivery: QueuedDelivery = {
        v: 1,
        seq: ++events,
        event_id: `e${events}`,
        matched: [],
        priority,
        enrichment: "none",
        at: new Date().toISOString(),
      };
      await either().put(owner, delivery, ulid());
      return delivery.seq;
    };
    const take = (queue: Queue, owner: AgentRef, limit = 10, waitMs = 0) =>
      queue.lease(owner, limit, waitMs, AbortSignal.timeout(60_000));
    const lease = (owner: AgentRef, limit = 10, waitMs = 0) => take(either(), owner, limit, waitMs);
    /** So many of the owner's deliveries, each handed out so often. */
    const attempts = async (queue: Queue, owner: AgentRef, attempt: number, count: number): Promise<Lease[]> => {
      const reached: Lease[] = [];
      await eventually(async () => {
        for (const got of await take(queue, owner)) {
          if (got.attempt === attempt) reached.push(got);
          else await queue.hold(owner, [got.handle], 0);
        }
        return reached.length === count;
      }, `attempt ${attempt}`);
      return reached;
    };
    const next = (owner: AgentRef) => eventually(async () => (await lease(owner, 1))[0], "the next lease");
    const handles = (leases: readonly Lease[]) => leases.map((l) => l.handle);
    const seqs = (leases: readonly Lease[]) => leases.map((l) => l.delivery.seq);
    const deadOf = ({ agent }: AgentRef) => dead.filter((item) => item.owner.agent === agent);
    const sum = (numbers: readonly number[]) => numbers.reduce((total, n) => total + n, 0);

    test("hands out what is put in, oldest first, as attempt 1, to its owner alone", async () => {
      const [owner, other] = [someone(), someone()];
      const put1 = [await put(owner), await put(owner), await put(owner)];
      expect(await lease(other)).toEqual([]);
      const leases = await lease(owner);
      expect(seqs(leases)).toEqual(put1);
      expect(leases.map((l) => l.attempt)).toEqual([1, 1, 1]);
    });

    test("hands out higher priorities first, also when they come later", async () => {
      const owner = someone();
      const [low, high] = [await put(owner, 0), await put(owner, 7)];
      expect(seqs(await lease(owner, 1))).toEqual([high]);
      const higher = await put(owner, 9);
      expect(seqs(await lease(owner, 5))).toEqual([higher, low]);
    });

    test("does not hand a lease to two replicas, whichever asks first", async () => {
      const owner = someone();
      for (let n = 0; n < 40; n++) await put(owner);
      const all = await Promise.all(
        Array.from({ length: 8 }, (_, n) => take(under.replicas[n % 2]!, owner)),
      );
      const taken = all.flatMap(seqs);
      expect(new Set(taken).size).toBe(taken.length);
      expect(taken).toHaveLength(40);
    });

    test("hands a lease out again when it runs out, with the same handle and the next attempt", async () => {
      const owner = someone();
      await put(owner);
      const [first] = await lease(owner);
      expect(await lease(owner)).toEqual([]);
      const second = await next(owner);
      expect(second).toMatchObject({ attempt: 2, handle: first!.handle });
    });

    test("counts an acknowledgement once, whoever else tries at the same time", async () => {
      const owner = someone();
      for (let n = 0; n < 50; n++) await put(owner);
      const leases = await lease(owner, 50);
      const counts = await Promise.all(
        Array.from({ length: 10 }, (_, n) => under.replicas[n % 2]!.acknowledge(owner, handles(leases), ulid())),
      );
      expect(sum(counts)).toBe(50);
      expect(sum(await Promise.all([either().acknowledge(owner, handles(leases), ulid())]))).toBe(0);
    });

    test("answers an acknowledgement under the same name as the first time", async () => {
      const owner = someone();
      await put(owner);
      const got = handles(await lease(owner));
      const by = ulid();
      for (const replica of under.replicas) expect(await replica.acknowledge(owner, got, by)).toBe(1);
    });

    test("never hands out again what is acknowledged, on time or late", async () => {
      const owner = someone();
      await put(owner);
      const [got] = await lease(owner);
      const late = await put(owner);
      const [other] = await lease(owner);
      expect(await either().acknowledge(owner, [got!.handle], ulid())).toBe(1);
      // The other one coming again shows that the time is over for both.
      expect(await next(owner)).toMatchObject({ attempt: 2, delivery: { seq: late } });
      expect(await either().acknowledge(owner, [other!.handle], ulid())).toBe(1);
      await put(owner);
      expect((await next(owner)).attempt).toBe(1);
    });

    test("lets a held lease come again at once, or later than the others", async () => {
      const owner = someone();
      const [now, later] = [await put(owner), await put(owner)];
      const [first, second] = await lease(owner);
      expect(await either().hold(owner, [second!.handle], 2_500)).toBe(1);
      expect(await either().hold(owner, [first!.handle], 0)).toBe(1);
      expect(seqs(await lease(owner, 10, 5_000))).toEqual([now]);
      // By the time the first comes for the third time, the usual timeout of the second is long over.
      expect(await next(owner)).toMatchObject({ attempt: 3, delivery: { seq: now } });
      expect(await next(owner)).toMatchObject({ attempt: 2, delivery: { seq: later } });
    });

    test("gives a lease again under the same attempt, and holds it from then on", async () => {
      const owner = someone();
      const [renewed, other] = [await put(owner), await put(owner)];
      const [first] = await take(under.patient, owner);
      const renew = () => under.patient.renew(owner, [first!]);
      expect(await renew()).toMatchObject([{ handle: first!.handle, attempt: 1, delivery: { seq: renewed } }]);
      const back = await eventually(
        async () => (await renew(), await take(under.patient, owner))[0],
        "the one that is not renewed",
      );
      expect(back).toMatchObject({ attempt: 2, delivery: { seq: other } });
      await either().acknowledge(owner, [back.handle], ulid());
      expect(await next(owner)).toMatchObject({ attempt: 2, delivery: { seq: renewed } });
    });

    test("a last attempt that is given again does not die meanwhile", async () => {
      const owner = someone();
      const [renewed, other] = [await put(owner), await put(owner)];
      const last = await attempts(under.patient, owner, MAX_ATTEMPTS, 2);
      const lease = last.find(({ delivery }) => delivery.seq === renewed)!;
      await eventually(async () => {
        expect(await under.patient.renew(owner, [lease])).toMatchObject([{ attempt: MAX_ATTEMPTS }]);
        expect(await take(under.patient, owner)).toEqual([]);
        return deadOf(owner).length > 0;
      }, "the death of the other one");
      expect(new Set(deadOf(owner).map(({ delivery }) => delivery.seq))).toEqual(new Set([other]));
      expect(await either().acknowledge(owner, [lease.handle], ulid())).toBe(1);
    });

    test("a last attempt keeps the time it was given when the timeout is shortened", async () => {
      const owner = someone();
      await put(owner);
      const [early] = await attempts(under.patient, owner, MAX_ATTEMPTS, 1);
      const late = await put(owner);
      await attempts(either(), owner, MAX_ATTEMPTS, 1);
      await eventually(async () => {
        expect(await lease(owner)).toEqual([]);
        return deadOf(owner).length > 0;
      }, "the death of the one with the shorter time");
      expect(new Set(deadOf(owner).map(({ delivery }) => delivery.seq))).toEqual(new Set([late]));
      expect(await either().acknowledge(owner, [early!.handle], ulid())).toBe(1);
    });

    test("an id from another time than the delivery's in that place ends nothing", async () => {
      const owner = someone();
      await put(owner);
      const { handle } = await next(owner);
      // Given out by a broker that has since been put back from a backup, and counts on from there.
      const other = { ...handle, at: handle.at - 3_600_000 };
      expect(await either().hold(owner, [other], 60_000)).toBe(0);
      expect(await either().reject(owner, [other], "unwanted", ulid())).toBe(0);
      expect(await either().acknowledge(owner, [other], ulid())).toBe(0);
      expect(await either().acknowledge(owner, [handle], ulid())).toBe(1);
    });

    test("gives no lease again that has run out or ended", async () => {
      const owner = someone();
      await put(owner);
      const [first] = await lease(owner);
      const second = await next(owner);
      expect(await either().renew(owner, [first!])).toEqual([]);
      expect(await either().renew({ ...owner, agent: newId("agent") }, [second])).toEqual([]);
      await either().acknowledge(owner, [second.handle], ulid());
      expect(await either().renew(owner, [second])).toEqual([]);
    });

    test("gives the dead to keep after the last attempt, with nobody asking for leases", async () => {
      const owner = someone();
      await put(owner);
      let last = await next(owner);
      while (last.attempt < MAX_ATTEMPTS) last = await next(owner);
      const [item] = await eventually(() => deadOf(owner).length > 0 && deadOf(owner), "the dead delivery");
      expect(item).toMatchObject({ owner, handle: last.handle, attempt: MAX_ATTEMPTS, delivery: last.delivery });
      expect(await lease(owner)).toEqual([]);
      expect(await either().acknowledge(owner, [last.handle], ulid())).toBe(0);
    });

    test("gives the dead to keep when the last attempt died with its replica, once leases are asked for", async () => {
      const owner = someone();
      await put(owner);
      const [before] = await attempts(either(), owner, MAX_ATTEMPTS - 1, 1);
      await either().hold(owner, [before!.handle], 0);
      await under.handToDying(owner);
      await eventually(async () => {
        expect(await lease(owner)).toEqual([]);
        return deadOf(owner).length > 0;
      }, "the dead delivery");
      expect(deadOf(owner)[0]).toMatchObject({ owner, handle: before!.handle, attempt: MAX_ATTEMPTS });
    });

    test("waits with the dead until they can be kept", async () => {
      const owner = someone();
      await put(owner);
      const [got] = await lease(owner);
      keepFails = true;
      await expect(either().reject(owner, [got!.handle], "no", ulid())).rejects.toThrow();
      expect(await either().acknowledge(owner, [got!.handle], ulid())).toBe(0);
      keepFails = false;
      const [item] = await eventually(() => deadOf(owner).length > 0 && deadOf(owner), "the dead delivery");
      expect(item).toMatchObject({ reason: "no", attempt: 1 });
    });

    test("ends a delivery either by acknowledging or by rejecting it, never both", async () => {
      const owner = someone();
      for (let n = 0; n < 30; n++) await put(owner);
      const got = handles(await lease(owner, 30));
      const [acknowledged, rejected] = await Promise.all([
        under.replicas[0].acknowledge(owner, got, ulid()),
        under.replicas[1].reject(owner, got, "no", ulid()),
      ]);
      expect(acknowledged + rejected).toBe(30);
      const ended = new Set([...deadOf(owner).map((d) => d.handle.seq)]);
      expect(ended.size).toBe(rejected);
      expect(await either().acknowledged(owner, 100)).toHaveLength(acknowledged);
    });

    test("puts in what has the same name once", async () => {
      const owner = someone();
      const delivery: QueuedDelivery = {
        v: 1,
        seq: ++events,
        event_id: "once",
        matched: [],
        priority: 0,
        enrichment: "none",
        at: new Date().toISOString(),
      };
      const name = ulid();
      for (const replica of under.replicas) await replica.put(owner, delivery, name);
      expect(await lease(owner)).toHaveLength(1);
    });

    test("a waiting lease is answered by whatever comes first, new or again", async () => {
      const owner = someone();
      for (const priority of [0, 4]) {
        const waiting = lease(owner, 10, 20_000);
        const seq = await put(owner, priority);
        const got = await waiting;
        expect(seqs(got)).toEqual([seq]);
        const again = await lease(owner, 10, 20_000);
        expect(again).toMatchObject([{ attempt: 2, delivery: { seq } }]);
        await either().acknowledge(owner, handles(again), ulid());
      }
    });

    test("giving up a wait loses nothing", async () => {
      const owner = someone();
      const giveUp = new AbortController();
      const waiting = Array.from({ length: 5 }, () => either().lease(owner, 10, 20_000, giveUp.signal));
      giveUp.abort();
      expect((await Promise.all(waiting)).flat()).toEqual([]);
      const seq = await put(owner);
      expect(seqs(await lease(owner))).toEqual([seq]);
    });

    test("lists what was acknowledged, newest first, with the attempt that succeeded", async () => {
      const owner = someone();
      await put(owner);
      const [slow] = await lease(owner);
      const again = await next(owner);
      await either().acknowledge(owner, [again.handle], ulid());
      await put(owner);
      const fast = await next(owner);
      await either().acknowledge(owner, [fast.handle], ulid());
      expect(await either().acknowledged(owner, 10)).toMatchObject([
        { handle: fast.handle, attempt: 1 },
        { handle: slow!.handle, attempt: 2 },
      ]);
      expect(await either().acknowledged(owner, 1)).toHaveLength(1);
    });

    test(
      "after a crash what is acknowledged stays so, and the rest comes again and still dies in the end",
      async () => {
        const owner = someone();
        const [kept, ended] = [await put(owner), await put(owner)];
        const leases = await lease(owner);
        const done = leases.find((l) => l.delivery.seq === ended)!;
        expect(await either().acknowledge(owner, [done.handle], ulid())).toBe(1);
        await under.crash();
        const retry = <T>(work: () => Promise<T>) =>
          eventually(() => work().catch(() => undefined), "the queue", 30_000);
        expect(await retry(() => either().acknowledge(owner, [done.handle], ulid()).then((n) => `${n}`))).toBe("0");
        const seen = new Set<number>();
        await eventually(
          async () => {
            for (const l of await lease(owner).catch(() => [])) seen.add(l.delivery.seq);
            return deadOf(owner).length > 0;
          },
          "the dead delivery",
          30_000,
        );
        expect([...seen]).toEqual([kept]);
        const generations = new Set(deadOf(owner).map((item) => item.generation));
        expect(generations.size).toBe(1);
        expect(deadOf(owner)[0]).toMatchObject({ attempt: MAX_ATTEMPTS, delivery: { seq: kept } });
      },
      60_000,
    );
  });
}
