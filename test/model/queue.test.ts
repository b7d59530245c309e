/**
 * The queues against their model, over HTTP, with two of every process. `npm test` walks a little; `npm run test:model`
 * far, with MODEL_RUNS, MODEL_STEPS, MODEL_SEED and MODEL_LANES (how many walk at once). A divergence prints what
 * happened and how to go that way again; MODEL_SHRINK=1 looks for a shorter way first, as far as time allows one.
 */
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Fault } from "../../contracts/errors.ts";
import { type World, world } from "../support/world.ts";
import { commands, drain, scene, Stalled } from "./queue.commands.ts";
import { MAX_ATTEMPTS, type QueueModel, VISIBILITY_MS } from "./queue.model.ts";

const number = (name: string, standard: number) => Number(process.env[name] ?? standard);
const lanes = number("MODEL_LANES", 6);
const runs = number("MODEL_RUNS", 2);
const steps = number("MODEL_STEPS", 80);
const seed = number("MODEL_SEED", Date.now() % 0x7fffffff);
const { MODEL_PATH: path, MODEL_COMMANDS: replayPath, MODEL_SHRINK } = process.env;

let w: World;
beforeAll(async () => {
  w = await world({
    services: ["registry", "delivery", "fanout", "ingest"],
    replicas: 2,
    gateways: 2,
    env: {
      VISIBILITY_TIMEOUT_SECONDS: String(VISIBILITY_MS / 1_000),
      MAX_DELIVERY_ATTEMPTS: String(MAX_ATTEMPTS),
      RATE_LIMIT_TOKEN_PER_MINUTE: "0",
      RATE_LIMIT_AGENT_PER_MINUTE: "0",
      RATE_LIMIT_TENANT_PER_MINUTE: "0",
    },
  });
}, 60_000);
afterAll(() => w?.[Symbol.asyncDispose]());

test(
  "whatever three agents do with their deliveries, in whatever order, is what the model of the queue allows",
  async () => {
    console.log(`model: seed ${seed}, ${lanes} lanes of ${runs} walks, up to ${steps} steps each`);
    const tally = { walks: 0, stalled: 0, requests: 0, ends: {} as Record<string, number> };
    const walk = fc.asyncProperty(commands(steps, replayPath), async (steps) => {
      tally.walks++;
      try {
        const { model, real } = await scene(w);
        await fc.asyncModelRun(() => ({ model, real }), steps);
        await drain(model, real);
        add(tally, model);
      } catch (error) {
        if (!(error instanceof Stalled || error instanceof Fault && error.code === "service_unavailable")) throw error;
        tally.stalled++;
      }
    });
    const results = await Promise.all(Array.from({ length: lanes }, (_, lane) =>
      fc.check(walk, {
        seed: seed + lane,
        numRuns: runs,
        // Time is part of a walk, so a shorter one seldom fails alike; what happened is in the message.
        endOnFailure: !MODEL_SHRINK,
        ...(path ? { path } : {}),
      })));
    console.log(`model: ${JSON.stringify(tally)}`);
    for (const [lane, { failed, errorInstance, counterexamplePath, counterexample }] of results.entries()) {
      const [, shrunk] = /replayPath="([^"]*)"/.exec(String(counterexample)) ?? [];
      const again = `MODEL_LANES=1 MODEL_RUNS=1 MODEL_SEED=${seed + lane} MODEL_PATH=${counterexamplePath}` +
        (MODEL_SHRINK && shrunk ? ` MODEL_COMMANDS=${shrunk}` : "");
      expect.soft(failed ? `${why(errorInstance)}\nAgain: ${again} npm run test:model` : "").toBe("");
    }
    expect(tally.stalled, "walks on a machine that does not answer").toBeLessThan(Math.max(2, tally.walks / 2));
  },
  number("MODEL_LIMIT_MINUTES", 3) * 60_000,
);

function add(tally: { requests: number; ends: Record<string, number> }, model: QueueModel): void {
  tally.requests += model.trace.length;
  for (const { fates } of model.items) tally.ends[fates[0]!.is] = (tally.ends[fates[0]!.is] ?? 0) + 1;
}

const why = (error: unknown): string =>
  error instanceof Error ? (error.cause instanceof Error ? why(error.cause) : error.message) : String(error);
