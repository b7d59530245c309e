/** One command, as a user gives it. */
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readFile, stat } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { client } from "../../contracts/client.ts";
import { eventually } from "../support/eventually.ts";
import { bootstrapOf, instance } from "../support/instance.ts";
import { temporaryFolder } from "../support/servers.ts";

const run = promisify(execFile);
const loggedIn = async (baseUrl: string, key: string) =>
  client(baseUrl, (await client(baseUrl)("auth.token", { body: { api_key: key } })).access_token);

describe.each(["node", "deno"] as const)("under %s", (runtime) => {
  test(
    "a first start prints keys and a tour that works pasted; a restart keeps everything and prints no key",
    async () => {
      await using folder = await temporaryFolder();
      const first = await instance(folder.path, { runtime });
      const made = await bootstrapOf(folder.path);
      expect((await stat(join(folder.path, "bootstrap.json"))).mode & 0o777).toBe(0o600);
      expect(Object.keys(made).sort()).toEqual([
        "agent_id",
        "agent_key",
        "base_url",
        "org_admin_key",
        "tenant_id",
        "tenant_slug",
      ]);
      const tour = first.output().split("Try it:")[1]!.split("ready on")[0]!.split("\n").slice(1).join("\n");
      const { stdout } = await run("bash", ["-euc", tour]);
      const polled = JSON.parse(stdout.trim().split("\n").at(-1)!);
      expect(polled.deliveries[0].payload).toMatchObject({ type: "com.example.greeting", data: "hello" });
      expect(await first.stop()).toBe(0);

      await using second = await instance(folder.path, { runtime });
      expect(second.output()).not.toContain("ak_live_");
      const call = await loggedIn(second.baseUrl, made.agent_key!);
      expect(await call("agents.get", { path: { id: made.agent_id! } })).toMatchObject({ name: "demo-agent" });
    },
    60_000,
  );
});

test("two instances with folders of their own run side by side", async () => {
  await using folders = await temporaryFolder();
  await using one = await instance(join(folders.path, "one"));
  await using two = await instance(join(folders.path, "two"));
  for (const [name, { baseUrl }] of [["one", one], ["two", two]] as const) {
    const { agent_key } = await bootstrapOf(join(folders.path, name));
    expect((await (await loggedIn(baseUrl, agent_key!))("agents.list", {})).total).toBe(1);
  }
}, 60_000);

test("after its own SIGKILL the next start takes over and finds everything", async () => {
  await using folder = await temporaryFolder();
  const first = await instance(folder.path);
  const { agent_key, agent_id } = await bootstrapOf(folder.path);
  const call = await loggedIn(first.baseUrl, agent_key!);
  const interest = await call("interests.create", {
    path: { id: agent_id! },
    body: { event_type: "a.*", priority: 0, enrichment_depth: "none" },
  });
  await first.stop("SIGKILL");
  await using second = await instance(folder.path);
  const again = await loggedIn(second.baseUrl, agent_key!);
  expect((await again("interests.list", { path: { id: agent_id! } })).interests).toEqual([interest]);
}, 60_000);

test("stopping ends every child process", async () => {
  await using folder = await temporaryFolder();
  const running = await instance(folder.path);
  const children = async () => {
    const { stdout } = await run("ps", ["-eo", "pid,args"]);
    return stdout.split("\n").filter((line) => line.includes(folder.path));
  };
  expect((await children()).length).toBeGreaterThan(0);
  await running.stop("SIGINT");
  await eventually(async () => (await children()).length === 0, "the children to end");
}, 60_000);

test.each([
  [{ PORT: "eighty" }, /PORT/],
  [{ PORT: "70000" }, /PORT/],
  [{ DURABILITY: "maybe" }, /DURABILITY/],
  [{ QDRANT_URL: "nowhere" }, /QDRANT_URL/],
  [{ RATE_LIMIT_AGENT_PER_MINUTE: "-1" }, /RATE_LIMIT_AGENT_PER_MINUTE/],
  [{ HOST: "256.0.0.1" }, /HOST/],
])("an unusable value is one clear line and exit code 1: %j", async (env, said) => {
  await using folder = await temporaryFolder();
  const failure = await instance(folder.path, { env }).then(() => undefined, (error) => error);
  expect(failure.code).toBe(1);
  const lines = failure.output.trim().split("\n").filter((line: string) =>
    !line.startsWith("starting") && !line.startsWith("making")
  );
  expect(lines).toHaveLength(1);
  expect(lines[0]).toMatch(said);
}, 60_000);

test("a port in use is one clear line and exit code 1, and nothing is left running", async () => {
  await using folder = await temporaryFolder();
  const taken = createServer().listen(0, "127.0.0.1");
  await once(taken, "listening");
  const { port } = taken.address() as { port: number };
  const failure = await instance(folder.path, { env: { PORT: String(port) } }).then(() => undefined, (error) => error);
  expect(failure.code).toBe(1);
  expect(failure.output.trim()).toMatch(new RegExp(`^Cannot start: 127.0.0.1:${port} .*EADDRINUSE.*PORT`));
  taken.close();
});

test("the operator's commands find the running instance, and speak to people and to programs", async () => {
  await using folder = await temporaryFolder();
  await using running = await instance(folder.path);
  const ops = (...args: string[]) =>
    run("node", ["ops/cli.ts", ...args], { env: { ...process.env, DATA_DIR: folder.path } }).then(
      ({ stdout }) => ({ code: 0, stdout, stderr: "" }),
      ({ code, stdout, stderr }) => ({ code, stdout, stderr }),
    );
  const made = JSON.parse((await ops("tenant", "create", "acme", "--name", "Acme", "--json")).stdout);
  const admin = await loggedIn(running.baseUrl, made.org_admin.key);
  expect((await admin("agents.list", {})).total).toBe(0);
  expect((await ops("tenant", "list")).stdout).toMatch(/^slug +id +name +created\n(.*\n)*acme +ten_/);
  expect(await ops("tenant", "create", "acme")).toMatchObject({ code: 1, stderr: expect.stringContaining("conflict") });
  expect(await ops("tenant", "create", "No Slug")).toMatchObject({ code: 1, stderr: expect.stringContaining("slug") });
  expect((await ops("tenant", "create")).code).toBe(2);
  const minted = JSON.parse((await ops("org-admin", "key", "mint", "--tenant", "acme", "--json")).stdout);
  const revoke = ["org-admin", "key", "revoke", minted.key_id, "--tenant", "acme"];
  expect(await ops(...revoke)).toMatchObject({ code: 2, stderr: expect.stringContaining("--yes") });
  expect((await ops(...revoke, "--yes")).code).toBe(0);
  await expect(loggedIn(running.baseUrl, minted.key)).rejects.toMatchObject({ code: "authentication_failed" });
  expect((await ops("--help")).stdout).toContain("org-admin");
  await running.stop();
  expect(await ops("tenant", "list")).toMatchObject({ code: 1, stderr: expect.stringContaining("npm start") });
}, 60_000);

test("the log of an instance has one line for a request and no secret", async () => {
  await using folder = await temporaryFolder();
  const running = await instance(folder.path);
  const { agent_key } = await bootstrapOf(folder.path);
  const response = await fetch(`${running.baseUrl}/auth/token`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-request-id": "the-one" },
    body: JSON.stringify({ api_key: agent_key }),
  });
  expect(response.status).toBe(200);
  await running.stop();
  const log = await readFile(join(folder.path, "sensorium.log"), "utf8");
  const lines = log.split("\n").filter((line) => line.includes('"the-one"'));
  expect(lines).toHaveLength(1);
  expect(JSON.parse(lines[0]!)).toMatchObject({ event: "request.answered", operation: "auth.token", status: 200 });
  expect(log).not.toContain("ak_live_");
}, 60_000);
