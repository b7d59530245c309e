/** The guide's walk-through, pasted as it stands. */
import { execFile, spawnSync } from "node:child_process";
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { instance } from "../support/instance.ts";
import { temporaryFolder } from "../support/servers.ts";

const tools = ["bash", "curl", "openssl"];
const missing = tools.find((tool) => spawnSync(tool, ["--version"]).error);
if (missing) console.warn(`\nSKIPPED: the guide's walk-through, because ${missing} is not there\n`);

const root = fileURLToPath(new URL("../../", import.meta.url));

test.skipIf(missing)("the walk from webhook create to a delivery works when pasted", async () => {
  const guide = await readFile(`${root}docs/guides/external-ingestion.md`, "utf8");
  const script = [...guide.matchAll(/^```sh\n([^]*?)^```/gm)].map(([, lines]) => lines).join("\n");
  await using folder = await temporaryFolder();
  await using running = await instance(folder.path);
  const { stdout } = await promisify(execFile)("bash", ["-euo", "pipefail", "-c", script], {
    cwd: root,
    env: { ...process.env, DATA_DIR: folder.path, BASE: running.baseUrl.replace("/v1", "") },
  });
  expect(stdout).toContain('{"event_id":"shop-1","status":"accepted"}');
  expect(stdout).toContain('"type":"com.shop.order.paid"');
  expect(stdout).toContain('{"acknowledged":1}');
  expect(stdout).toMatch(/202 \{"event_id":"sample-/);
  expect(stdout).toContain("deleted whk_");
}, 90_000);
