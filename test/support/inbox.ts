/** Where pushes arrive. */
import { createHmac } from "node:crypto";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";

export interface Received {
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}
type Answer = { status: number; headers?: Record<string, string> } | "hang";

/** An agent's own server: answers what it is told to, and remembers what came. */
export async function inbox(answer: (received: Received, count: number) => Answer = () => ({ status: 200 })) {
  const received: Received[] = [];
  let inHand = 0;
  let mostInHand = 0;
  const server = createServer(async (request, response) => {
    mostInHand = Math.max(mostInHand, ++inHand);
    let body = "";
    for await (const chunk of request) body += chunk;
    received.push({ headers: request.headers, body });
    const said = answer(received.at(-1)!, received.length);
    if (said !== "hang") response.writeHead(said.status, said.headers).end("thank you");
    inHand--;
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/inbox`,
    received,
    events: () => received.map(({ body }) => JSON.parse(body).id as string),
    mostInHand: () => mostInHand,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((done) => server.close(done));
    },
  };
}

/** As a receiver checks it. */
export const verifies = ({ headers, body }: Received, secret: string) => {
  const text = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`;
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const wanted = `v1,${createHmac("sha256", key).update(text).digest("base64")}`;
  return String(headers["webhook-signature"]).split(" ").includes(wanted);
};
