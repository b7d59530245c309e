// Set-up on a small project of its own, with stand-ins for npm and nats-server that write down how they were called.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { chmod, copyFile, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { describe, expect, it } from "vitest";
import { isAtLeast, OLDEST_NATS, parseDeb822, parseOneLine, projectDir, WANTED_NATS } from "../../ops/setup.mjs";

describe("set-up", () => {
  it("makes ready at the first run, and does nothing at the second", async () => {
    await using project = await newProject();
    await project.program("nats-server", natsServer("2.15.1"));

    const first = await project.setup();
    expect(first).toMatchObject({ code: 0, stderr: "" });
    expect(first.stdout).toContain("ready: Node");
    const second = await project.setup(["--quiet"]);

    expect(second).toEqual({ code: 0, stdout: "", stderr: "" });
    expect(await project.calls("npm")).toHaveLength(1);
    expect(await project.calls("nats-server")).toHaveLength(1);
  });

  it("leaves modules alone that the user installed himself", async () => {
    await using project = await newProject();
    await project.program("nats-server", natsServer("2.15.1"));
    await project.installThing("1.0.0");

    expect(await project.setup()).toMatchObject({ code: 0 });
    expect(await project.calls("npm")).toEqual([]);
  });

  it("installs again when the lock file has changed", async () => {
    await using project = await newProject();
    await project.program("nats-server", natsServer("2.15.1"));
    await project.setup();
    await project.lock("1.0.1");

    expect(await project.setup(["--quiet"])).toMatchObject({ code: 0 });
    expect(await project.calls("npm")).toHaveLength(2);
  });

  it("says so in one sentence when npm fails", async () => {
    await using project = await newProject();
    await project.program("npm", "process.exit(7);");

    const { code, stderr } = await project.setup();
    expect(code).toBe(1);
    expect(stderr).toMatch(/^set-up: Cannot install the node modules: npm ended with code 7.*\n$/);
  });

  it("installs once when two run at the same time", async () => {
    await using project = await newProject();
    await project.program("nats-server", natsServer("2.15.1"));
    await project.program("npm", NPM_WAITING);

    const first = project.setup();
    await expect.poll(() => project.calls("npm")).toHaveLength(1);
    const second = project.setup([], {
      onOutput: (text) => text.includes("another set-up is at work") && project.write("go", ""),
    });

    expect(await first).toMatchObject({ code: 0 });
    expect(await second).toMatchObject({ code: 0 });
    expect(await project.calls("npm")).toHaveLength(1);
  });

  it.each([
    ["whose process is gone", { pid: 2 ** 22 + 1, started: "1" }],
    ["whose pid now belongs to another process", { pid: process.pid, started: "1" }],
    ["that was cut short", undefined],
  ])("takes over a lock %s", async (_, holder) => {
    await using project = await newProject();
    await project.program("nats-server", natsServer("2.15.1"));
    await project.write(".cache/modules.lock", holder ? JSON.stringify({ ...holder, token: "old" }) : "{");

    expect(await project.setup()).toMatchObject({ code: 0 });
  });
});

describe("nats-server", () => {
  it("is taken from NATS_SERVER_BIN before the PATH, and from the PATH before the cache", async () => {
    await using project = await newProject();
    const cached = `.cache/nats-server-${WANTED_NATS}-${process.platform}-${process.arch}/nats-server`;
    await project.program("nats-server", natsServer("2.13.0"));
    await project.program("nats-server", natsServer("2.14.0"), join(project.folder, cached));
    const named = join(project.folder, "named");
    await project.program("nats-server", natsServer("2.12.0"), named);

    const found = async (env = {}) => /nats-server (\S+)/.exec((await project.setup([], { env })).stdout)?.[1];
    expect(await found({ NATS_SERVER_BIN: named })).toBe("2.12.0");
    expect(await found()).toBe("2.13.0");
    await project.program("nats-server", natsServer("2.11.9"));
    expect(await found()).toBe("2.14.0");
  });

  it.each([
    ["is missing", undefined, "not a nats-server that runs here"],
    ["does not run", "process.exit(1);", "not a nats-server that runs here"],
    ["is too old", natsServer("2.11.9"), "nats-server 2.11.9; 2.12.0 or newer is needed"],
  ])("named by NATS_SERVER_BIN that %s is one line and exit code 1", async (_, source, reason) => {
    await using project = await newProject();
    const named = join(project.folder, "named");
    if (source) await project.program("nats-server", source, named);

    const { code, stderr } = await project.setup([], { env: { NATS_SERVER_BIN: named } });
    expect(code).toBe(1);
    expect(stderr).toContain(reason);
    expect(stderr.trim().split("\n")).toHaveLength(1);
  });

  it("comes from the release page when its checksum is right, and stays in the cache", async () => {
    await using project = await newProject();
    await using page = await releasePage(project);

    const first = await project.setup([], { env: { NATS_RELEASE_URL: page.url } });
    expect(first).toMatchObject({ code: 0, stderr: "" });
    expect(first.stdout).toContain(join(project.folder, ".cache", `nats-server-${WANTED_NATS}`));
    expect(await project.setup(["--quiet"])).toEqual({ code: 0, stdout: "", stderr: "" });
  });

  it("is refused when its checksum is wrong, and one sentence says what to do instead", async () => {
    await using project = await newProject();
    await using page = await releasePage(project, { sum: "0".repeat(64) });

    const { code, stdout, stderr } = await project.setup([], { env: { NATS_RELEASE_URL: page.url } });
    expect(code).toBe(1);
    expect(stdout).toContain("not from its release: checksum of");
    expect(stderr).toMatch(/^set-up: No nats-server could be had: .*NATS_SERVER_BIN.*\n$/);
  });

  it("is not needed by who brings his own with NATS_URL", async () => {
    await using project = await newProject();
    const { code, stdout } = await project.setup([], { env: { NATS_URL: "nats://127.0.0.1:4222" } });
    expect(code).toBe(0);
    expect(stdout).toContain("NATS_URL");
  });

  it.each([
    ["2.12.0", true],
    ["2.15.1", true],
    ["3.0.0", true],
    ["2.11.9", false],
    ["2.9.10", false],
  ])("%s is new enough: %s", (version, enough) => expect(isAtLeast(version, OLDEST_NATS)).toBe(enough));
});

describe("Debian's package sources", () => {
  it("are read in the newer format, with a key written into the file", () => {
    const text = [
      "Types: deb deb-src\nURIs: http://a.example/debian\nSuites: bookworm bookworm-updates\nComponents: main contrib",
      "# The mirror\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n AAAA\n",
    ].join("\n");
    expect(parseDeb822(text)).toEqual([{
      uris: ["http://a.example/debian"],
      suites: ["bookworm", "bookworm-updates"],
      components: ["main", "contrib"],
      signedBy: "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n AAAA",
    }]);
  });

  it.each([
    ["are passed over when disabled", "Enabled: no\nTypes: deb\nURIs: http://a.example\nSuites: sid\nComponents: main"],
    ["are passed over for sources", "Types: deb-src\nURIs: http://a.example\nSuites: sid\nComponents: main"],
  ])("%s", (_, text) => expect(parseDeb822(text)).toEqual([]));

  it.each([
    ["deb http://a.example/debian bookworm main contrib", undefined],
    ["deb [arch=amd64 signed-by=/k.gpg] http://a.example/debian bookworm main contrib # ours", " /k.gpg"],
  ])("are read in the one-line format: %s", (line, signedBy) => {
    const source = {
      uris: ["http://a.example/debian"],
      suites: ["bookworm"],
      components: ["main", "contrib"],
      signedBy,
    };
    expect(parseOneLine(`# deb http://b.example sid main\n${line}\n`)).toEqual([source]);
  });
});

// Every stand-in writes one line a call, so that a test can count them.
const natsServer = (version: string) => `console.log("nats-server: v${version}");`;

const NPM = `
const { version } = JSON.parse(fs.readFileSync("package-lock.json")).packages["node_modules/thing"];
fs.mkdirSync("node_modules/thing", { recursive: true });
fs.writeFileSync("node_modules/thing/package.json", "{}");
fs.writeFileSync("node_modules/.package-lock.json", JSON.stringify({ packages: { "node_modules/thing": { version } } }));
`;

const NPM_WAITING = `
const waiting = setInterval(() => {
  if (!fs.existsSync("go")) return;
  clearInterval(waiting);
  ${NPM}
}, 10);
`;

const systemTool = (name: string) => [`/usr/bin/${name}`, `/bin/${name}`].find((file) => existsSync(file)) ?? name;

interface SetupOptions {
  env?: Record<string, string>;
  onOutput?: (text: string) => unknown;
}

async function newProject() {
  const folder = await mkdtemp(join(tmpdir(), "sensorium-setup-"));
  const bin = join(folder, "bin");
  const write = async (file: string, text: string) => {
    await mkdir(join(folder, file, ".."), { recursive: true });
    await writeFile(join(folder, file), text);
  };
  const project = {
    folder,
    write,
    async program(name: string, source: string, file = join(bin, name)) {
      await mkdir(join(file, ".."), { recursive: true });
      const count = `fs.appendFileSync(${JSON.stringify(join(folder, `${name}.calls`))}, process.argv[1] + "\\n");`;
      await writeFile(file, `#!${process.execPath}\nconst fs = require("node:fs");\n${count}\n${source}\n`);
      await chmod(file, 0o755);
    },
    async calls(name: string) {
      const text = await readFile(join(folder, `${name}.calls`), "utf8").catch(() => "");
      return text.split("\n").filter(Boolean);
    },
    async lock(version: string) {
      const packages = { "": { name: "small" }, "node_modules/thing": { version } };
      await write("package-lock.json", JSON.stringify({ lockfileVersion: 3, packages }));
    },
    async installThing(version: string) {
      await write("node_modules/thing/package.json", "{}");
      await write(
        "node_modules/.package-lock.json",
        JSON.stringify({ packages: { "node_modules/thing": { version } } }),
      );
    },
    setup(args: string[] = [], { env = {}, onOutput }: SetupOptions = {}) {
      // Nothing listens there; with a PATH of our own no other way is open.
      const closed = { NATS_RELEASE_URL: "http://127.0.0.1:9" };
      const child = spawn(process.execPath, [join(folder, "ops", "setup.mjs"), ...args], {
        cwd: tmpdir(),
        env: { PATH: bin, ...closed, ...env },
      });
      let [stdout, stderr] = ["", ""];
      child.stdout.on("data", (chunk) => (stdout += chunk) && onOutput?.(stdout));
      child.stderr.on("data", (chunk) => (stderr += chunk));
      return new Promise<{ code: number | null; stdout: string; stderr: string }>((resolve, reject) => {
        child.once("error", reject).once("close", (code) => resolve({ code, stdout, stderr }));
      });
    },
    [Symbol.asyncDispose]: () => rm(folder, { recursive: true, force: true }),
  };
  await mkdir(join(folder, "ops"), { recursive: true });
  await copyFile(join(projectDir, "ops", "setup.mjs"), join(folder, "ops", "setup.mjs"));
  await write("package.json", JSON.stringify({ name: "small", type: "commonjs" }));
  await project.lock("1.0.0");
  await project.program("npm", NPM);
  for (const tool of ["tar", "gzip"]) await symlink(systemTool(tool), join(bin, tool));
  return project;
}

/** A web server with the files of a release, made from a stand-in. */
async function releasePage(project: Awaited<ReturnType<typeof newProject>>, { sum }: { sum?: string } = {}) {
  const cpu = process.arch === "arm64" ? "arm64" : "amd64";
  const name = `nats-server-v${WANTED_NATS}-${process.platform}-${cpu}`;
  await project.program("nats-server", natsServer(WANTED_NATS), join(project.folder, "release", name, "nats-server"));
  const archive = join(project.folder, "archive.tar.gz");
  const made = spawn(systemTool("tar"), ["-czf", archive, "-C", join(project.folder, "release"), name]);
  await new Promise((resolve) => made.once("close", resolve));
  const bytes = await readFile(archive);
  const found = createHash("sha256").update(bytes).digest("hex");
  const files: Record<string, string | Uint8Array> = {
    "/SHA256SUMS": `${"1".repeat(64)}  other.tar.gz\n${sum ?? found}  ${name}.tar.gz\n`,
    [`/${name}.tar.gz`]: bytes,
  };
  const server = createServer((request, response) => {
    const file = files[request.url ?? ""];
    response.writeHead(file ? 200 : 404).end(file);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
