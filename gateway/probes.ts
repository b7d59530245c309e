/** What is asked without a token: is it alive, is it ready, what did it measure, what can it do. */
import type { NatsConnection } from "@nats-io/nats-core";
import type { Hono } from "hono";
import { newId } from "../contracts/identity.ts";
import { services } from "../contracts/operation.ts";
import { openapi } from "../contracts/openapi.ts";
import { subjects } from "../contracts/subjects.ts";
import { checkAll, type HealthReport } from "../runtime/health.ts";
import type { Authenticator } from "./authenticate.ts";

export function probes(app: Hono, deps: {
  readonly nc: NatsConnection;
  readonly authenticator: Pick<Authenticator, "jwks">;
  readonly exposition: () => Promise<string>;
  readonly version: string;
  readonly isDraining: () => boolean;
}): void {
  const { nc, authenticator, exposition, version, isDraining } = deps;
  const document = openapi(version);
  app.use(async function requestId(c, next) {
    await next();
    if (!c.res.headers.has("x-request-id")) c.header("x-request-id", newId("request"));
  });
  app.get("/livez", (c) => c.json({ status: "ok", version }));
  app.get("/readyz", async (c) => {
    if (isDraining()) return c.json({ status: "draining" }, 503);
    const { ok, checks } = await checkAll(
      Object.fromEntries(services.map((name) => [name, () => askHealth(nc, name)])),
    );
    return c.json({ status: ok ? "ready" : "not ready", checks }, ok ? 200 : 503);
  });
  app.get("/metrics", async (c) => c.text(await exposition(), 200));
  app.get("/v1/openapi.json", (c) => c.json(document));
  app.get("/.well-known/jwks.json", (c) => c.json(authenticator.jwks()));
}

async function askHealth(nc: NatsConnection, service: (typeof services)[number]): Promise<void> {
  const report = (await nc.request(subjects.health(service), undefined, { timeout: 1_500 }).catch(() => {
    throw new Error("away");
  })).json<HealthReport>();
  if (report.ok) return;
  throw new Error(Object.entries(report.checks).filter(([, v]) => v !== "ok").map(([k, v]) => `${k}: ${v}`).join("; "));
}
