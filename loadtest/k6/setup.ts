/** What every scenario needs first: agents with interests, and their tokens. */
import http from "k6/http";
import { fail } from "k6";

export const BASE = __ENV.BASE_URL || "http://127.0.0.1:8080/v1";

export interface Subscriber {
  readonly id: string;
  readonly token: string;
  readonly group: number;
}
export interface Prepared {
  readonly sender: string;
  readonly subscribers: Subscriber[];
}

const json = { "content-type": "application/json" };
export const bearer = (token: string) => ({ ...json, authorization: `Bearer ${token}` });

export function post<T>(path: string, token: string | undefined, body: unknown, expected: number): T {
  const answer = http.post(BASE + path, JSON.stringify(body), {
    headers: token ? bearer(token) : json,
    tags: { name: path },
  });
  if (answer.status !== expected) fail(`${path} was answered ${answer.status}: ${answer.body}`);
  return answer.json() as T;
}

/** `FAN_OUT` agents share each group's event type. Needs `ORG_ADMIN_KEY`; see the README beside this. */
export function prepare(agents: number, fanOut: number): Prepared {
  const key = __ENV.ORG_ADMIN_KEY;
  if (!key) fail("ORG_ADMIN_KEY is not set: it is in DATA_DIR/bootstrap.json");
  const admin = exchange(key);
  const subscribers: Subscriber[] = [];
  for (let i = 0; i < agents; i++) {
    const { id } = post<{ id: string }>("/agents", admin, {
      name: `k6-${i}`,
      delivery_mode: "poll",
      client_type: "other",
    }, 201);
    const minted = post<{ key: string }>(`/agents/${id}/keys`, admin, { scopes: ["receive", "interests:write"] }, 201);
    const token = exchange(minted.key);
    const group = Math.floor(i / fanOut);
    post(
      `/agents/${id}/interests`,
      token,
      { event_type: `k6.g${group}.*`, priority: 0, enrichment_depth: "none" },
      201,
    );
    subscribers.push({ id, token, group });
  }
  return { sender: admin, subscribers };
}

const exchange = (key: string) =>
  post<{ access_token: string }>("/auth/token", undefined, { api_key: key }, 200).access_token;
