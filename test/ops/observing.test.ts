/** What is written for operators is true: tables, alerts and dashboards name what there is. */
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { measure } from "../../runtime/measure.ts";
import { startTelemetry, TelemetryEnv } from "../../runtime/telemetry.ts";

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

  test("alerts fire when they should, as promtool sees it", async ({ skip }) => {
    const promtool = (...args: string[]) => run("promtool", args, { cwd: fileURLToPath(root) });
    if (await promtool("--version").then(() => false, () => true)) {
      console.log("SKIPPED: promtool is not on this machine, so the alerts were not tried with it");
      return skip();
    }
    await promtool("check", "rules", "ops/alerts.yaml");
    await promtool("test", "rules", "test/ops/alerts.promtool.yaml");
  });
});
