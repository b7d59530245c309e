/** What the README and the guides say to paste, pasted as it stands. */
import { execFile, spawnSync } from "node:child_process";
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { instance } from "../support/instance.ts";
import { temporaryFolder } from "../support/servers.ts";

const tools = ["bash", "curl", "openssl"];
const missing = tools.find((tool) => spawnSync(tool, ["--version"]).error);
if (missing) {
  console.warn(`\nSKIPPED: the guide's walk-through, and the README's tour, because ${missing} is not there\n`);
}

const root = fileURLToPath(new URL("../../", import.meta.url));

/** The commands of a page, those of one section where it is named. */
async function commandsOf(page: string, section = ""): Promise<string> {
  const text = await readFile(root + page, "utf8");
  const part = section ? text.split(`\n## ${section}\n`)[1]!.split("\n## ")[0]! : text;
  return [...part.matchAll(/^```sh\n([^]*?)^```/gm)].map(([, lines]) => lines).join("\n");
}

const paste = (script: string, env: Record<string, string>) =>
  promisify(execFile)("bash", ["-euo", "pipefail", "-c", script], { cwd: root, env: { ...process.env, ...env } });

test.skipIf(missing)("the README's five minutes work when pasted", async () => {
  await using folder = await temporaryFolder();
  await using running = await instance(folder.path);
  const { stdout } = await paste(await commandsOf("README.md", "Five minutes"), {
    DATA_DIR: folder.path,
    BASE: running.baseUrl,
  });
  expect(stdout).toContain('{"event_id":"order-1","status":"accepted"}');
  expect(stdout).toContain('{"event_id":"order-1","status":"duplicate"}');
  expect(stdout).toContain('{"acknowledged":1}');
  expect(stdout).toMatch(/"results":\[\{"memory":\{[^}]*"title":"Refund policy"/);
  expect(stdout).toContain('"code":"invalid_event"');
  expect(stdout).toContain('"position":12');
}, 90_000);

test.skipIf(missing)("the walk from webhook create to a delivery works when pasted", async () => {
  await using folder = await temporaryFolder();
  await using running = await instance(folder.path);
  const { stdout } = await paste(await commandsOf("docs/guides/external-ingestion.md"), {
    DATA_DIR: folder.path,
    BASE: running.baseUrl.replace("/v1", ""),
  });
  expect(stdout).toContain('{"event_id":"shop-1","status":"accepted"}');
  expect(stdout).toContain('"type":"com.shop.order.paid"');
  expect(stdout).toContain('{"acknowledged":1}');
  expect(stdout).toMatch(/202 \{"event_id":"sample-/);
  expect(stdout).toContain("deleted whk_");
}, 90_000);
