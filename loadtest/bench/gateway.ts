/**
 * `npm run bench:gateway`: processor time of one authenticated request through gateway, bus, registry and Postgres, as a
 * multiple of a bare Hono handler's in the same run. The client's own time is left out.
 */
import autocannon from "autocannon";
import { cpuSeconds } from "./cpu.ts";
import { startInstance, startScript } from "./instance.ts";

const CONNECTIONS = 32;
const WARM_SECONDS = 3;
const SECONDS = Number(process.env.BENCH_SECONDS ?? 10);

interface Measure {
  readonly perSecond: number;
  readonly cpuMicroseconds: number;
  readonly p50: number;
  readonly p99: number;
}

async function measure(pid: number, url: string, headers: Record<string, string>): Promise<Measure> {
  await autocannon({ url, headers, connections: CONNECTIONS, duration: WARM_SECONDS });
  const before = cpuSeconds(pid);
  const result = await autocannon({ url, headers, connections: CONNECTIONS, duration: SECONDS });
  const spent = cpuSeconds(pid) - before;
  const failed = result.non2xx + result.errors + result.timeouts;
  if (failed > 0) throw new Error(`${failed} requests failed; the figures would say nothing`);
  return {
    perSecond: result.requests.average,
    cpuMicroseconds: (spent / result.requests.total) * 1e6,
    p50: result.latency.p50,
    p99: result.latency.p99,
  };
}

const results: Record<string, Measure> = {};
{
  await using bare = await startScript("loadtest/bench/bare.ts");
  results["bare Hono handler"] = await measure(bare.pid, `${bare.url}/agents/x`, {});
}
{
  await using instance = await startInstance();
  const headers = { authorization: `Bearer ${instance.token}` };
  results["GET /agents/{id}"] = await measure(
    instance.pid,
    `${instance.url}/agents/${instance.bootstrap.agent_id}`,
    headers,
  );
}
{
  await using limited = await startInstance({
    RATE_LIMIT_AGENT_PER_MINUTE: "900000000",
    RATE_LIMIT_TENANT_PER_MINUTE: "900000000",
  });
  const headers = { authorization: `Bearer ${limited.token}` };
  results["the same, rate limits on"] = await measure(
    limited.pid,
    `${limited.url}/agents/${limited.bootstrap.agent_id}`,
    headers,
  );
}

const unit = results["bare Hono handler"]!.cpuMicroseconds;
console.log(`\n${CONNECTIONS} connections, ${SECONDS} s each\n`);
console.log("| path | CPU µs a request | × bare | requests/s | p50 ms | p99 ms |\n|---|---|---|---|---|---|");
for (const [name, m] of Object.entries(results)) {
  const cells = [
    name,
    m.cpuMicroseconds.toFixed(0),
    (m.cpuMicroseconds / unit).toFixed(1),
    m.perSecond.toFixed(0),
    m.p50,
    m.p99,
  ];
  console.log(`| ${cells.join(" | ")} |`);
}
