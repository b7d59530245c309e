/** POST /w/{slug}: bytes and headers go to ingest as they came, because a signature covers them as they came. */
import type { Context, Hono } from "hono";
import { maxBodyOf } from "../contracts/operation.ts";
import { operationOf } from "../contracts/operations.ts";
import { ulid } from "../contracts/identity.ts";
import { shown } from "../contracts/validation.ts";
import { admit, exchange, type GatewayDeps, safeKey } from "./app.ts";
import { readBody } from "./body.ts";

export interface WebhookDeps extends Pick<GatewayDeps, "bus" | "limiter" | "addressOf" | "log"> {
  readonly perMinute: number;
}

const NAME = "webhooks.receive";

export function webhooks(app: Hono, deps: WebhookDeps): void {
  const operation = operationOf(NAME);
  app.post("/w/:slug", (c) =>
    exchange(deps, c, NAME, "POST /w/{slug}", async (x) => {
      x.line.slug = shown(c.req.param("slug"));
      const bytes = await readBody(c, maxBodyOf(operation));
      await admit(deps, x, [{
        key: `webhook.${safeKey(deps.addressOf(c))}`,
        perMinute: deps.perMinute,
        label: "address",
      }]);
      const body = { slug: c.req.param("slug"), headers: headersOf(c), body: Buffer.from(bytes).toString("base64") };
      const origin = { caller: { kind: "service", name: "gateway" }, requestId: x.requestId, seed: ulid() } as const;
      const answer = await deps.bus.ask(NAME, { path: {}, query: {}, body }, origin);
      const answered = answer.read();
      return { status: operation.statusOf!(answered), body: "quietly" in answered ? undefined : answer.bytes };
    }));
}

/** Credentials meant for somebody between the sender and us stay here. */
const kept = new Set(["authorization", "cookie", "proxy-authorization"]);
const headersOf = (c: Context): Record<string, string> =>
  Object.fromEntries(Object.entries(c.req.header()).filter(([name]) => !kept.has(name)));
