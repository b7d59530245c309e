import { expect, test } from "vitest";
import { fannedStream } from "../../contracts/streams.ts";
import { connectBus } from "../../runtime/bus.ts";
import { ensureStreams } from "../../runtime/jetstream.ts";
import { silent } from "../../runtime/log.ts";
import { publisher } from "../../runtime/publish.ts";
import { progressIn } from "../../services/fanout/progress.ts";
import { broker } from "../support/servers.ts";

test("what one replica has noted is known to another as soon as something hints at a step back", async () => {
  await using server = await broker();
  await using bus = await connectBus(server.url, "test", silent);
  await ensureStreams(bus.nc, [fannedStream]);
  await using publish = publisher(bus.nc);
  const one = progressIn(bus.nc, publish, silent);
  const two = progressIn(bus.nc, publish, silent);
  const stored = Date.now();
  const event = (seq: number, attempt: number, storedAtMs = stored) => ({ seq, attempt, storedAtMs });
  expect([...await two.fannedAmong([event(1, 1)])]).toEqual([]);

  for (let seq = 2; seq <= 3_000; seq += 2) await one.note([seq, seq + 1]);
  expect([...await two.fannedAmong([event(5_000, 1)])]).toEqual([]);
  // Handed out again, and from before the last.
  expect([...await two.fannedAmong([event(1, 2), event(3, 2), event(3_001, 2), event(3_002, 2)])]).toEqual([3, 3_001]);
  await one.note([4_998]);
  expect([...await two.fannedAmong([event(4_998, 1)])]).toEqual([4_998]);

  const afterRestart = progressIn(bus.nc, publish, silent);
  const all = Array.from({ length: 3_000 }, (_, i) => event(i + 2, 1));
  expect((await afterRestart.fannedAmong(all)).size).toBe(3_000);

  const ofANewStream = event(3, 1, Date.now() + 60_000);
  expect([...await two.fannedAmong([ofANewStream])]).toEqual([]);
});
