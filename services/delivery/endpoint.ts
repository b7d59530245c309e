/** One push over HTTP: sent once, no redirect followed, nothing of the answer kept but what it says. */
import http from "node:http";
import https from "node:https";
import { isAllowedHost, PrivateTarget, publicLookup } from "./address.ts";

export type Pushed =
  | { readonly outcome: "accepted" }
  /** 410: do not come back. */
  | { readonly outcome: "gone" }
  | { readonly outcome: "failed"; readonly reason: string; readonly retryAfterMs?: number };

export interface Endpoint extends AsyncDisposable {
  post(url: string, body: string, headers: Record<string, string>, timeoutMs: number): Promise<Pushed>;
}

const MAX_ANSWER_BYTES = 64 * 1024;
const MAX_RETRY_AFTER_MS = 3_600_000;

export function endpoints(options: { readonly allowPrivate: boolean }): Endpoint {
  const { allowPrivate } = options;
  const shared = {
    keepAlive: true,
    maxFreeSockets: 64,
    timeout: 30_000,
    ...(allowPrivate ? {} : { lookup: publicLookup }),
  };
  const agents = { "http:": new http.Agent(shared), "https:": new https.Agent(shared) };

  return {
    post(url, body, headers, timeoutMs) {
      const { promise, resolve } = Promise.withResolvers<Pushed>();
      const fail = (reason: string) => resolve({ outcome: "failed", reason });
      let target: URL;
      try {
        target = new URL(url);
      } catch {
        return Promise.resolve({ outcome: "failed", reason: "is not a URL" });
      }
      if (target.protocol !== "http:" && target.protocol !== "https:") {
        return Promise.resolve({ outcome: "failed", reason: `has the scheme ${target.protocol}` });
      }
      if (!allowPrivate && !isAllowedHost(target.hostname)) {
        return Promise.resolve({ outcome: "failed", reason: "is not a public address" });
      }
      const { request } = target.protocol === "https:" ? https : http;
      const sent = request(target, {
        method: "POST",
        agent: agents[target.protocol],
        headers: { ...headers, "content-length": Buffer.byteLength(body) },
      });
      const timer = setTimeout(() => {
        fail(`did not answer within ${Math.round(timeoutMs / 100) / 10} s`);
        sent.destroy();
      }, timeoutMs);
      sent.on("close", () => {
        clearTimeout(timer);
        fail("closed the connection");
      });
      sent.on("error", (error: Error & { code?: string }) =>
        fail(
          error instanceof PrivateTarget
            ? "is not a public address"
            : `could not be reached (${error.code ?? error.message})`,
        ));
      sent.on("response", (answer) => {
        resolve(verdict(answer.statusCode ?? 0, answer.headers["retry-after"]));
        // Read to its end the connection can be used again; too long an answer is not worth that.
        let bytes = 0;
        answer.on("data", (chunk: Uint8Array) => (bytes += chunk.length) > MAX_ANSWER_BYTES && answer.destroy());
        answer.on("error", () => {});
      });
      sent.end(body);
      return promise;
    },
    async [Symbol.asyncDispose]() {
      for (const agent of Object.values(agents)) agent.destroy();
    },
  };
}

function verdict(status: number, retryAfter: string | undefined): Pushed {
  if (status >= 200 && status < 300) return { outcome: "accepted" };
  if (status === 410) return { outcome: "gone" };
  const retryAfterMs = retryAfter === undefined ? undefined : readRetryAfter(retryAfter, Date.now());
  return { outcome: "failed", reason: `answered ${status}`, ...(retryAfterMs === undefined ? {} : { retryAfterMs }) };
}

/** Seconds, or a date. */
export function readRetryAfter(text: string, nowMs: number): number | undefined {
  const ms = /^\d+$/.test(text.trim()) ? Number(text) * 1_000 : Date.parse(text) - nowMs;
  return Number.isNaN(ms) ? undefined : Math.min(MAX_RETRY_AFTER_MS, Math.max(0, ms));
}
