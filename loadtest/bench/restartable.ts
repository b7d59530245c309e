/** An instance that can be stopped and started again on the same data, and that an operator's requests can be sent to. */
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { headers } from "@nats-io/nats-core";
import { connect } from "@nats-io/transport-node";
import { exchange, launch, newDataDir } from "./instance.ts";

export interface Restartable extends AsyncDisposable {
  pid: number;
  url: string;
  readonly dataDir: string;
  /** Of the first start's agent. */
  token: string;
  restart(signal?: NodeJS.Signals): Promise<void>;
}

export async function startRestartable(env: Record<string, string> = {}): Promise<Restartable> {
  const dataDir = await newDataDir();
  let child: ChildProcess;
  const self: Restartable = {
    pid: 0,
    url: "",
    token: "",
    dataDir,
    async restart(signal = "SIGTERM") {
      child.kill(signal);
      await once(child, "exit");
      await start();
    },
    async [Symbol.asyncDispose]() {
      child.kill("SIGTERM");
      await once(child, "exit");
      await rm(dataDir, { recursive: true, force: true });
    },
  };
  const start = async () => {
    const { url, token, ...started } = await launch(dataDir, env);
    child = started.child;
    Object.assign(self, { pid: child.pid!, url, token });
  };
  await start();
  return self;
}

/** Makes so many tenants with an agent each, and answers the agents' tokens. */
export async function agentsOfTenants({ dataDir, url }: Restartable, count: number): Promise<string[]> {
  const { nats_url } = JSON.parse(await readFile(join(dataDir, "instance.json"), "utf8")) as { nats_url: string };
  const address = new URL(nats_url);
  const nc = await connect({ servers: address.host, user: address.username, pass: address.password });
  const call = async (method: string, path: string, token: string, body: unknown) => {
    const response = await fetch(url + path, {
      method,
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    return await response.json() as { id: string; key: string };
  };
  try {
    const tokens: string[] = [];
    let next = 0;
    await Promise.all(Array.from({ length: 8 }, async () => {
      for (let i = next++; i < count; i = next++) {
        const h = headers();
        h.set("Caller", JSON.stringify({ kind: "operator" }));
        h.set("Request-Id", `bench-${i}`);
        h.set("Seed", `0${Date.now().toString(32).padStart(9, "0")}${String(i).padStart(16, "0")}`.slice(0, 26));
        const body = JSON.stringify({ path: {}, query: {}, body: { slug: `bench-${i}` } });
        const answer = await nc.request("rpc.registry.operator.tenant_create", body, { headers: h, timeout: 10_000 });
        const admin = await exchange(url, answer.json<{ org_admin: { key: string } }>().org_admin.key);
        const agent = await call("POST", "/agents", admin, { name: "a", delivery_mode: "poll", client_type: "other" });
        const { key } = await call("POST", `/agents/${agent.id}/keys`, admin, {
          scopes: ["memory:read", "memory:write"],
        });
        tokens[i] = await exchange(url, key);
      }
    }));
    return tokens;
  } finally {
    await nc.close();
  }
}
