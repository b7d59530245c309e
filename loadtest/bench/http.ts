/** A lean HTTP client: the one built into the runtime costs the client more than the server it measures. */
import { Agent, request } from "node:http";

export interface Answer<T> {
  readonly status: number;
  readonly body: T;
}

export function httpClient(baseUrl: string, sockets = 64) {
  const { hostname, port, pathname } = new URL(baseUrl);
  const agent = new Agent({ keepAlive: true, maxSockets: sockets });
  return <T>(
    method: string,
    path: string,
    token: string | undefined,
    body?: unknown,
    contentType = "application/json",
  ): Promise<Answer<T>> =>
    new Promise((resolve, reject) => {
      const sent = body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body);
      const headers = {
        ...(token ? { authorization: `Bearer ${token}` } : {}),
        ...(sent === undefined ? {} : { "content-type": contentType, "content-length": Buffer.byteLength(sent) }),
      };
      const asked = request({ agent, hostname, port, path: pathname + path, method, headers }, (response) => {
        const chunks: Buffer[] = [];
        response.on("data", (chunk) => chunks.push(chunk));
        response.on("end", () => {
          const text = Buffer.concat(chunks).toString();
          resolve({ status: response.statusCode!, body: (text === "" ? undefined : JSON.parse(text)) as T });
        });
        response.on("error", reject);
      });
      asked.on("error", reject);
      asked.end(sent);
    });
}
export type Http = ReturnType<typeof httpClient>;

/** Runs `work` for every item, at most `width` at a time. */
export async function inParallel<T, R>(
  items: readonly T[],
  width: number,
  work: (item: T, index: number) => Promise<R>,
): Promise<R[]> {
  const results: R[] = new Array(items.length);
  let next = 0;
  await Promise.all(Array.from({ length: width }, async () => {
    for (let i = next++; i < items.length; i = next++) results[i] = await work(items[i]!, i);
  }));
  return results;
}

export const percentile = (sorted: readonly number[], p: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor((sorted.length * p) / 100))] ?? NaN;
