/** The operator's commands as a person and as a program call them. */
import { createHmac } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { runCommand } from "../../ops/program.ts";
import { eventually } from "../support/eventually.ts";
import { temporaryFolder } from "../support/servers.ts";
import { type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let tenant: TestTenant;
let folder: Awaited<ReturnType<typeof temporaryFolder>>;

beforeAll(async () => {
  w = await world({
    services: ["registry", "delivery", "fanout", "ingest", "connector"],
    env: { VISIBILITY_TIMEOUT_SECONDS: "30" },
  });
  tenant = await w.tenant();
  folder = await temporaryFolder();
});
afterAll(async () => {
  await w?.[Symbol.asyncDispose]();
  await folder?.[Symbol.asyncDispose]();
});

interface Ran {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** In this process: a process for each would cost more than all that they do. */
async function ops(...args: string[]): Promise<Ran> {
  let stdout = "";
  let stderr = "";
  const code = await runCommand(args, {
    env: { NATS_URL: w.env.NATS_URL, GATEWAY_URL: w.urls[0], DATA_DIR: folder.path },
    print: (line) => stdout += `${line}\n`,
    complain: (line) => stderr += `${line}\n`,
    input: () => Promise.resolve("from-standard-input-0123456789\n"),
  });
  return { code, stdout, stderr };
}
// deno-lint-ignore no-explicit-any -- answers of every shape
const json = async (...args: string[]): Promise<any> => {
  const { code, stdout, stderr } = await ops(...args, "--json");
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return JSON.parse(stdout);
};
const whose = () => ["--tenant", tenant.slug];

test("a webhook is created, shown, tried, rotated and deleted", async () => {
  const mapping = ["--entity", "order", "--action", "/action", "--id", "/id"];
  const { webhook, secret } = await json("webhook", "create", ...whose(), "--source", "shop", ...mapping);
  expect(secret).toMatch(/^whsec_/);
  const shown = await ops("webhook", "show", webhook.id, ...whose());
  expect(shown.stdout).toContain(`${w.urls[0]!.replace("/v1", "")}/w/${tenant.slug}`);
  expect(shown.stdout).toContain("action = /action");
  expect(shown.stdout).not.toContain(secret);
  expect((await ops("webhook", "list", ...whose())).stdout).toMatch(
    /^id +source +preset +path +secrets +created\nwhk_/,
  );

  const tried = await ops("webhook", "test", webhook.id, ...whose());
  expect(tried.stdout).toMatch(/202 \{"event_id":"sample-\w+","status":"accepted"\}/);
  const file = join(folder.path, "body.json");
  await writeFile(file, '{"id":"mine"}');
  expect(await ops("webhook", "test", webhook.id, ...whose(), "--body-file", file)).toMatchObject({
    code: 1,
    stdout: expect.stringContaining("invalid_event"),
  });

  const rotated = await json("webhook", "rotate", webhook.id, ...whose(), "--overlap", "60");
  expect(rotated.webhook.secrets).toHaveLength(2);
  expect((await ops("webhook", "rotate", webhook.id, ...whose(), "--overlap", "soon")).code).toBe(2);
  expect((await ops("webhook", "delete", webhook.id, ...whose())).code).toBe(2);
  expect((await ops("webhook", "delete", webhook.id, ...whose(), "--yes")).code).toBe(0);
  expect(await ops("webhook", "show", webhook.id, ...whose())).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("not_found"),
  });
});

test("a sender's own secret comes from standard input and is not repeated", async () => {
  const args = ["webhook", "create", ...whose(), "--source", "stripe", "--preset", "stripe", "--secret-file", "-"];
  const made = await json(...args);
  expect(made.secret).toBeNull();
  expect(JSON.stringify(made)).not.toContain("from-standard-input");
  const body = JSON.stringify({ id: "evt_stdin", type: "invoice.paid" });
  const now = Math.floor(Date.now() / 1_000);
  const v1 = createHmac("sha256", "from-standard-input-0123456789").update(`${now}.${body}`).digest("hex");
  const response = await fetch(`${w.urls[0]!.replace("/v1", "")}/w/${tenant.slug}`, {
    method: "POST",
    headers: { "content-type": "application/json", "stripe-signature": `t=${now},v1=${v1}` },
    body,
  });
  expect(response.status).toBe(202);
});

test("a program gives the mapping as JSON", async () => {
  const mapping = { entity: "order", action: "/action", entity_id: "/n" };
  const create = ["webhook", "create", ...whose(), "--source", "shop", "--mapping"];
  expect((await json(...create, JSON.stringify(mapping))).webhook.mapping).toEqual(mapping);
  expect((await ops(...create, "{")).code).toBe(2);
  expect(await ops(...create, '{"entity":"x"}')).toMatchObject({ code: 1, stderr: expect.stringContaining("action") });
});

test("what is wrongly called says so with exit code 2, and what is refused with 1", async () => {
  const create = ["webhook", "create", ...whose(), "--source", "shop"];
  const answers = await Promise.all([
    ops(...create, "--entity", "order"),
    ops(...create, "--preset", "carrier-pigeon"),
    ops("webhook", "list"),
    ops("webhook", "list", "--tenant", "nobody"),
    ops(...create, "--entity", "{", "--action", "x"),
  ]);
  expect(answers.map(({ code }) => code)).toEqual([2, 2, 2, 1, 1]);
  expect(answers[4]!.stderr).toContain("mapping.entity");
});

test("a connector is created, listed, tried, paused, resumed and deleted, and no secret is printed", async () => {
  const password = join(folder.path, "password");
  await writeFile(password, "hush-hush\n");
  const made = await json(
    "connector",
    "create",
    ...whose(),
    ...["--source", "shop", "--host", "127.0.0.1", "--port", "1", "--address", "/queue/orders"],
    ...["--username", "reader", "--password-file", password, "--entity", "order", "--action", "/action"],
  );
  expect(made.settings).toMatchObject({ host: "127.0.0.1", port: 1, sasl: "plain", credit: 100 });
  const { id } = made;
  const tried = await ops("connector", "test", id, ...whose());
  expect(tried).toMatchObject({ code: 1, stdout: expect.stringContaining("cannot be read") });
  await eventually(async () => (await json("connector", "list"))[0].state.last_error, "the error to be listed");
  const listed = await ops("connector", "list", ...whose());
  const [head = "", row] = listed.stdout.split("\n");
  expect(head.split(/ {2,}/)).toEqual([
    ...["id", "source", "reads", "status", "waiting", "unsettled", "oldest", "credit", "received", "accepted"],
    ...["duplicate", "rejected", "released", "reconnects", "last message", "error"],
  ]);
  expect(row).toMatch(/^con_.* connecting +- +0 +- +0 +0 /);
  expect(listed.stdout).toContain("ECONNREFUSED");
  expect((await json("connector", "pause", id, ...whose())).state.status).toBe("paused");
  expect((await json("connector", "resume", id, ...whose())).paused).toBe(false);
  const shown = await ops("connector", "show", id, ...whose());
  expect(shown.stdout).toContain("reads /queue/orders at 127.0.0.1:1, SASL plain as reader");
  expect(shown.stdout).toContain("waiting at the broker: it does not say");
  for (const { stdout } of [tried, listed, shown]) expect(stdout).not.toContain("hush-hush");
  const nameless = ["connector", "create", ...whose(), "--source", "x", "--host", "h", "--address", "a"];
  expect(await ops(...nameless)).toMatchObject({ code: 1, stderr: expect.stringContaining("username") });
  expect((await ops("connector", "delete", id, ...whose())).code).toBe(2);
  expect((await ops("connector", "delete", id, ...whose(), "--yes")).code).toBe(0);
  expect(await json("connector", "list", ...whose())).toEqual([]);
});

test("dead letters are listed, replayed and purged; usage is told", async () => {
  const agent = await tenant.agent();
  await agent.call("interests.create", {
    path: { id: agent.id },
    body: { event_type: "dead.*", priority: 0, enrichment_depth: "none" },
  });
  for (const id of ["d-1", "d-2"]) {
    await agent.call("events.publish", { body: { specversion: "1.0", id, type: "dead.letter", source: "/test" } });
  }
  const rejected = await eventually(async () => {
    const { deliveries } = await agent.call("delivery.poll", { query: { limit: 10, wait: 1 } });
    if (deliveries.length === 0) return undefined;
    const delivery_ids = deliveries.map(({ id }) => id);
    await agent.call("delivery.reject", { body: { delivery_ids, reason: "no number" } });
    return (await json("dlq", "list", ...whose())).total === 2;
  }, "two dead letters");
  expect(rejected).toBe(true);
  const { dlq_items } = await json("dlq", "list", ...whose());
  expect((await ops("dlq", "list", ...whose())).stdout).toMatch(/^delivery +agent +type +event.*\ndlv_[^\n]*no number/);
  expect(await json("dlq", "replay", dlq_items[0].delivery_id, ...whose())).toEqual({ replayed: 1 });
  expect((await ops("dlq", "purge", ...whose())).code).toBe(2);
  expect(await json("dlq", "purge", ...whose(), "--yes")).toEqual({ purged: 1 });
  expect(await json("usage", ...whose())).toEqual([
    expect.objectContaining({ tenant: tenant.id, events: expect.any(Number) }),
  ]);
});

test("every command has help with an example", async () => {
  const nouns = {
    webhook: ["create", "list", "show", "rotate", "delete", "test"],
    connector: ["create", "list", "show", "pause", "resume", "delete", "test"],
    dlq: ["list", "replay", "purge"],
    tenant: ["create", "list"],
  };
  for (const [noun, verbs] of Object.entries(nouns)) {
    for (const verb of verbs) {
      const { code, stdout } = await ops(noun, verb, "--help");
      expect(code).toBe(0);
      expect(stdout).toContain("Example:\n  npm run ops -- ");
    }
  }
});

test("somebody at the keyboard is asked before anything is deleted", async () => {
  const answers = ["n", "", "y"];
  const asked: string[] = [];
  const { webhook } = await json("webhook", "create", ...whose(), "--source", "hub", "--preset", "github");
  const codes: number[] = [];
  while (answers.length > 0) {
    codes.push(
      await runCommand(["webhook", "delete", webhook.id, ...whose()], {
        env: { NATS_URL: w.env.NATS_URL },
        print: () => {},
        complain: () => {},
        input: () => Promise.resolve(""),
        question: (text) => {
          asked.push(text);
          return Promise.resolve(answers.shift()!);
        },
      }),
    );
  }
  expect(codes).toEqual([1, 1, 0]);
  expect(asked[0]).toContain(webhook.id);
});
