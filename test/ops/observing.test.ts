/** What is written for operators is true: tables, alerts, dashboards and compose name what there is. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { measure, startTelemetry, TelemetryEnv } from "../../runtime/telemetry.ts";

const root = new URL("../../", import.meta.url);
const read = (path: string) => readFile(new URL(path, root), "utf8");
const run = promisify(execFile);

async function toldMetrics(): Promise<Set<string>> {
  await using telemetry = await startTelemetry("test", TelemetryEnv.parse({}));
  for (const instrument of Object.values(measure())) {
    if ("add" in instrument) instrument.add(1);
    else instrument.record(1);
  }
  return new Set([...(await telemetry.exposition()).matchAll(/^# TYPE (\w+)/gm)].map(([, name]) => name!));
}

describe("metrics", () => {
  test("the table in docs/metrics.md and the processes name the same ones", async () => {
    const table = [...(await read("docs/metrics.md")).matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name!);
    expect(new Set(table)).toEqual(await toldMetrics());
  });

  test("alerts and dashboards use metrics that exist", async () => {
    const told = await toldMetrics();
    const expressions = [
      ...[...(await read("ops/alerts.yaml")).matchAll(/expr: (?:\|\n)?((?:.|\n {10,})+)/g)].map(([, text]) => text!),
      ...[...(await read("ops/dashboards/sensorium.json")).matchAll(/"expr": "(.*)"/g)].map(([, text]) => text!),
    ];
    expect(expressions.length).toBeGreaterThan(25);
    const used = expressions.flatMap((text) => text.match(/\b[a-z]+(?:_[a-z]+)+\b/g) ?? []);
    const functions = new Set(["histogram_quantile"]);
    const unknown = used.filter((name) => !functions.has(name) && !told.has(name.replace(/_(bucket|sum|count)$/, "")));
    expect(unknown).toEqual([]);
  });

  test("every alert has its paragraph in the runbook", async () => {
    const runbook = await read("ops/runbook.md");
    const wanted = [...(await read("ops/alerts.yaml")).matchAll(/runbook\.md#(\w+)/g)].map(([, anchor]) => anchor!);
    const headings = [...runbook.matchAll(/^### (\w+)/gm)].map(([, heading]) => heading!.toLowerCase());
    expect(wanted.filter((anchor) => !headings.includes(anchor))).toEqual([]);
  });
});

describe("docker-compose.yml", () => {
  test("runs every process there is, and nothing that is not", async () => {
    const compose = await read("docker-compose.yml");
    const commands = [...compose.matchAll(/command: \["(\S+main\.ts)"\]/g)].map(([, file]) => file!);
    const services = (await readdir(new URL("services/", root)))
      .map((name) => `services/${name}/main.ts`).filter((file) => existsSync(new URL(file, root)));
    expect(commands.sort()).toEqual(["gateway/main.ts", ...services].sort());
    for (const [, file] of compose.matchAll(/"?\.\/(ops\/[\w./-]+):/g)) {
      expect(existsSync(new URL(file!, root)), file).toBe(true);
    }
  });

  const profiles = [
    ["core", []],
    ["obs", ["--env-file", "ops/obs.env"]],
    ["cluster", ["--env-file", "ops/cluster.env"]],
    ["amqp", []],
  ] as const;
  test.for(profiles)("is understood by docker compose with profile %s", async ([profile, more], { skip }) => {
    const secrets = { SERVER_SECRET: "x".repeat(32), NATS_PASSWORD: "nats", POSTGRES_PASSWORD: "postgres" };
    const compose = (...args: string[]) =>
      run("docker", ["compose", ...args], { cwd: root, env: { ...process.env, ...secrets } });
    if (await compose("version").then(() => false, () => true)) {
      console.log(`SKIPPED: docker compose is not on this machine, so profile ${profile} was not checked with it`);
      return skip();
    }
    const { stdout } = await compose(...more, "--profile", profile, "config", "--format", "json");
    const { services } = JSON.parse(stdout) as { services: Record<string, { read_only?: boolean }> };
    for (const name of ["gateway", "registry", "ingest", "fanout", "delivery", "memory", "connector"]) {
      expect(services[name], name).toMatchObject({ read_only: true, cap_drop: ["ALL"] });
    }
    if (profile === "cluster") expect(services).toHaveProperty("nats-3");
    if (profile === "obs") expect(services).toHaveProperty("grafana");
  });
});
