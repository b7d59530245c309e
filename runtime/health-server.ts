/**
 * What a process started on its own says to whoever watches over it: `/livez` depends on nothing, `/readyz` is 200 while
 * it can do its work and 503 from the moment it stops, `/metrics` is what it measured.
 */
import { createServer } from "node:http";
import { z } from "zod";
import { wholeNumber } from "./env.ts";
import { checkAll, type Checks } from "./health.ts";
import { version } from "./version.ts";

export const HealthEnv = z.object({
  HEALTH_PORT: wholeNumber(0, 65_535, 0)
    .describe("Where the process answers /livez, /readyz and /metrics; nowhere when 0"),
  HEALTH_HOST: z.string().default("127.0.0.1").describe("The address of HEALTH_PORT"),
});

export interface Vitals {
  readonly isReady: () => boolean;
  readonly checks: Checks;
  readonly exposition: () => Promise<string>;
}

export async function serveHealth(port: number, host: string, vitals: Vitals): Promise<AsyncDisposable> {
  const release = await version();
  const json = (status: number, body: unknown) => ({ status, type: "application/json", text: JSON.stringify(body) });
  const answers: Record<string, () => Promise<{ status: number; type: string; text: string }>> = {
    "/livez": async () => json(200, { status: "ok", version: release }),
    "/readyz": async () => {
      if (!vitals.isReady()) return json(503, { status: "not ready" });
      const { ok, checks } = await checkAll(vitals.checks);
      return json(ok ? 200 : 503, { status: ok ? "ready" : "not ready", checks });
    },
    "/metrics": async () => ({ status: 200, type: "text/plain; charset=utf-8", text: await vitals.exposition() }),
  };
  const server = createServer(async (request, response) => {
    const answer = answers[new URL(request.url ?? "/", "http://localhost").pathname];
    const { status, type, text } = await (answer?.() ?? Promise.resolve(json(404, { status: "not found" })))
      .catch((error: Error) => json(500, { status: error.message }));
    response.writeHead(status, { "content-type": type, connection: "close" }).end(text);
  });
  await new Promise<void>((resolve, reject) => {
    server.once(
      "error",
      (error: NodeJS.ErrnoException) =>
        reject(new Error(`Cannot start: HEALTH_PORT ${port} cannot be listened on (${error.code})`)),
    );
    server.listen(port, host, resolve);
  });
  return {
    [Symbol.asyncDispose]: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
