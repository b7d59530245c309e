/** The operator's hand on the index of memories. */
import postgres from "postgres";
import { expect, test } from "vitest";
import { runCommand } from "../../ops/program.ts";
import { world } from "../support/world.ts";

test("reindex tells how far it is until it is done; check finds what differs, and repair mends it", async () => {
  await using w = await world({ services: ["registry", "memory"] });
  const agent = await (await w.tenant()).agent();
  const memories = Array.from({ length: 100 }, (_, i) => ({
    type: "semantic" as const,
    scope: "agent" as const,
    title: `n${i}`,
    content: `number ${i}`,
  }));
  await agent.call("memories.batch", { body: { memories } });
  const ops = async (...args: string[]) => {
    const said: string[] = [];
    const code = await runCommand(args, {
      env: { NATS_URL: w.env.NATS_URL },
      print: (line) => said.push(line),
      complain: (line) => said.push(line),
      input: () => Promise.resolve(""),
    });
    return { code, said, last: said.at(-1) ?? "" };
  };
  const done = await ops("reindex");
  expect([done.code, done.last]).toEqual([
    0,
    expect.stringMatching(/^100 of 100 memories prepared by [^\s,]+(, 0 not yet told to qdrant)?$/),
  ]);
  expect(done.said.length).toBeGreaterThan(1);
  expect(JSON.parse((await ops("reindex", "--status", "--json")).said.join(""))).toMatchObject({
    memories: 100,
    remaining: 0,
    index: w.env.QDRANT_URL ? "qdrant" : "embedded",
  });
  await agent.call("memories.search", { body: { query: "number" } });
  expect((await ops("reindex", "--check")).last).toContain("in agreement");
  const sql = postgres(w.env.DATABASE_URL!, { max: 1 });
  await sql`update memory.memories set version = version + 1, indexed_version = greatest(indexed_version, version + 1)
    where title = 'n7'`;
  await sql.end();
  const different = await ops("reindex", "--check");
  expect([different.code, different.last]).toEqual([1, expect.stringContaining("1 stale")]);
  expect((await ops("reindex", "--repair")).last).toContain("repaired");
  expect((await ops("reindex", "--check")).code).toBe(0);
  expect((await ops("reindex", "events")).code).toBe(1);
});
