/**
 * Who may do what with whose memory: every caller of two tenants, two teams each with three agents, and the org-admins,
 * tries every operation on a memory of every owner and scope. What should happen is said once, in `may`.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Memory, MemoryScope } from "../../contracts/memory.ts";
import { type Answer, type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

interface Who {
  readonly name: string;
  readonly tenant: number;
  readonly team?: string;
  readonly id?: string;
  readonly token: string;
}
interface Kept {
  readonly owner: Who;
  readonly scope: MemoryScope;
  readonly id: string;
}

const scopes = ["agent", "team", "institutional"] as const;
const seats = [0, 1].flatMap((tenant) =>
  ["red", "red", "blue"].map((team, i) => ({ name: `tenant ${tenant}, ${team} ${i}`, tenant, team }))
);
const callers = [...seats.map(({ name }) => name), "tenant 0, org-admin", "tenant 1, org-admin"];

let w: World;
let everybody: Who[];
beforeAll(async () => {
  w = await world({ services: ["registry", "memory"], env: { RATE_LIMIT_TOKEN_PER_MINUTE: "0" } });
  const tenants: TestTenant[] = [await w.tenant(), await w.tenant()];
  everybody = [];
  for (const seat of seats) {
    const agent: TestAgent = await tenants[seat.tenant]!.agent({ team: seat.team, name: seat.name });
    everybody.push({ ...seat, id: agent.id, token: agent.token });
  }
  tenants.forEach((t, i) => everybody.push({ name: `tenant ${i}, org-admin`, tenant: i, token: t.adminToken }));
});
afterAll(() => w?.[Symbol.asyncDispose]());

/** A word of its own for every memory, so that a search for it can mean no other. */
let words = 0;
async function keep(owner: Who, scope: MemoryScope): Promise<Kept & { word: string }> {
  const word = `quux${words++}zz`;
  const { status, body } = await w.request("POST", "/memories", {
    token: owner.token,
    body: { type: "semantic", scope, title: word, content: `About ${word}.` },
  });
  expect(status).toBe(201);
  return { owner, scope, id: body.id, word };
}

const isOwner = (who: Who, kept: Kept) => who.id !== undefined && who.id === kept.owner.id;
function mayRead(who: Who, kept: Kept): boolean {
  if (who.tenant !== kept.owner.tenant) return false;
  if (isOwner(who, kept) || kept.scope === "institutional") return true;
  if (kept.scope === "agent") return false;
  return who.id === undefined || who.team === kept.owner.team;
}

type Outcome = "done" | 404 | "not_owner" | "agent_required" | "scope_only_widens";
const outcome = ({ status, body }: Answer): string | number =>
  status < 300 ? "done" : status === 422 ? body.error.details.rule : status;

interface Operation {
  readonly may: (who: Who, kept: Kept) => Outcome;
  readonly run: (who: Who, kept: Kept, extra: { own?: string }) => Promise<Answer>;
}
const toWrite = (who: Who, kept: Kept): Outcome =>
  !mayRead(who, kept) ? 404 : isOwner(who, kept) || who.id === undefined ? "done" : "not_owner";

const operations: Record<string, Operation> = {
  get: {
    may: (who, kept) => mayRead(who, kept) ? "done" : 404,
    run: (who, { id }) => w.request("GET", `/memories/${id}`, { token: who.token }),
  },
  update: {
    may: toWrite,
    run: (who, { id }) => w.request("PATCH", `/memories/${id}`, { token: who.token, body: { importance: 0.75 } }),
  },
  "list relationships": {
    may: (who, kept) => !mayRead(who, kept) ? 404 : who.id ? "done" : "agent_required",
    run: (who, { id }) => w.request("GET", `/memories/${id}/relationships`, { token: who.token }),
  },
  "link to": {
    may: (who, kept) => !mayRead(who, kept) ? 404 : who.id ? "done" : "agent_required",
    run: (who, { id }, { own }) =>
      w.request("POST", `/memories/${own ?? id}/relationships`, {
        token: who.token,
        body: { target_memory_id: id, relationship_type: "supports" },
      }),
  },
  promote: {
    may: (who, kept) => {
      const write = toWrite(who, kept);
      return write === "done" && kept.scope === "institutional" ? "scope_only_widens" : write;
    },
    run: (who, { id }) =>
      w.request("POST", `/memories/${id}/promote`, { token: who.token, body: { scope: "institutional" } }),
  },
  delete: {
    may: toWrite,
    run: (who, { id }) => w.request("DELETE", `/memories/${id}`, { token: who.token }),
  },
};

describe.each(callers)("%s", (name) => {
  test.each(Object.entries(operations))("%s", async (_, { may, run }) => {
    const who = everybody.find((one) => one.name === name)!;
    const own = who.id ? (await keep(who, "agent")).id : undefined;
    for (const owner of everybody.filter(({ id }) => id !== undefined)) {
      for (const scope of scopes) {
        const kept = await keep(owner, scope);
        const label = `${scope} memory of ${owner.name}`;
        const answer = await run(who, kept, { ...(own ? { own } : {}) });
        expect([label, outcome(answer)]).toEqual([label, may(who, kept)]);
        // A refusal changes nothing, and what is another's is refused as what is nowhere.
        if (answer.status === 404) {
          const nowhere = await run(who, { ...kept, id: "mem_nowhere" }, { ...(own ? { own } : {}) });
          const told = (a: Answer, id: string) =>
            JSON.stringify({ ...a.body.error, request_id: "" }).replaceAll(id, "ID");
          expect(told(answer, kept.id)).toBe(told(nowhere, "mem_nowhere"));
        }
        if (answer.status >= 400) {
          const now = await w.request("GET", `/memories/${kept.id}`, { token: owner.token });
          expect(now.body).toMatchObject({ importance: 0.5, scope, status: "active" });
        }
      }
    }
  });

  test("list and search show exactly what may be read", async () => {
    const who = everybody.find((one) => one.name === name)!;
    const kept: (Kept & { word: string })[] = [];
    for (const owner of everybody.filter(({ id }) => id !== undefined)) {
      for (const scope of scopes) kept.push(await keep(owner, scope));
    }
    for (const one of kept) {
      const listed = await w.request("GET", `/memories?search=${one.word}`, { token: who.token });
      const found = await w.request("POST", "/memories/search", {
        token: who.token,
        body: { query: one.word, limit: 100 },
      });
      const label = `${one.scope} memory of ${one.owner.name}`;
      const ids = found.body.results.map(({ memory }: { memory: Memory }) => memory.id);
      const expected = mayRead(who, one);
      expect([label, listed.body.total === 1, ids.includes(one.id)]).toEqual([label, expected, expected]);
      for (const { memory } of found.body.results as { memory: Memory }[]) expect(memory.tenant_id).toBe(tenantOf(who));
    }
  });
});

const tenantOf = (who: Who): string => JSON.parse(Buffer.from(who.token.split(".")[1]!, "base64url").toString()).tid;

test("an owner outside the team it gave a memory to still reads, finds and changes it", async () => {
  const red = everybody[0]!;
  const { status, body } = await w.request("POST", "/memories", {
    token: red.token,
    body: { type: "semantic", scope: "team", team_id: "blue", title: "gift", content: "For blue: xylocarp." },
  });
  expect(status).toBe(201);
  const found = async (who: Who) =>
    (await w.request("POST", "/memories/search", { token: who.token, body: { query: "xylocarp", scope: "team" } })).body
      .results.some(({ memory }: { memory: Memory }) => memory.id === body.id);
  expect([await found(red), await found(everybody[1]!), await found(everybody[2]!)]).toEqual([true, false, true]);
  expect((await w.request("PATCH", `/memories/${body.id}`, { token: red.token, body: { title: "a gift" } })).status)
    .toBe(
      200,
    );
});
