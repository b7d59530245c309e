/** A typed HTTP client with no code per operation. */
import { type Details, type ErrorCode, Fault } from "./errors.ts";
import { type OperationName, operationOf, type Output, type Sent } from "./operations.ts";

export interface CallOptions {
  readonly idempotencyKey?: string;
  readonly signal?: AbortSignal;
}

export type Client = <N extends OperationName>(name: N, sent: Sent<N>, options?: CallOptions) => Promise<Output<N>>;

/** `baseUrl` carries the version segment; `token` is absent for the token exchange alone. */
export function client(baseUrl: string, token?: string, send: typeof fetch = fetch): Client {
  return async (name, sent, { idempotencyKey, signal } = {}) => {
    const { http } = operationOf(name);
    if (!http) throw new TypeError(`${name} is reachable over the bus alone`);
    const [method, template] = http;
    const { path = {}, query = {}, body } = sent as {
      path?: Record<string, string>;
      query?: Record<string, unknown>;
      body?: unknown;
    };
    const filled = template.replace(/\{(\w+)\}/g, (_, key: string) => encodeURIComponent(path[key] ?? ""));
    const asked = new URLSearchParams(
      Object.entries(query).filter(([, v]) => v !== undefined).map(([k, v]): [string, string] => [k, String(v)]),
    );
    const response = await send(`${baseUrl}${filled}${asked.size > 0 ? `?${asked}` : ""}`, {
      method,
      headers: {
        ...(token ? { authorization: `Bearer ${token}` } : {}),
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(idempotencyKey ? { "idempotency-key": idempotencyKey } : {}),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal ? { signal } : {}),
    });
    const text = await response.text();
    const answer = text === "" ? undefined : JSON.parse(text);
    if (response.ok) return answer;
    const { code, message, details } = answer.error as {
      code: ErrorCode;
      message: string;
      details: Details<ErrorCode>;
    };
    throw new Fault(code, message, details);
  };
}
