/** The HTTP listener: opens, and closes without cutting anyone off. */
import type { Server } from "node:http";
import type { Socket } from "node:net";
import { serve } from "@hono/node-server";
import { newId } from "../contracts/identity.ts";

export interface Listener extends AsyncDisposable {
  readonly port: number;
}

export async function listen(fetch: (request: Request) => Response | Promise<Response>, options: {
  readonly host: string;
  readonly port: number;
  /** How long to go on taking requests once it is to close. */
  readonly noticeSeconds: number;
  /** How long to wait for those in hand after that. */
  readonly drainSeconds: number;
}): Promise<Listener> {
  const { host, port, noticeSeconds, drainSeconds } = options;
  const server = await new Promise<Server>((resolve, reject) => {
    const opened = serve({ fetch, hostname: host, port }, () => resolve(opened)) as Server;
    opened.once("error", reject);
  });
  // Longer than a load balancer keeps its side open, so that it never sends into a closing connection.
  server.keepAliveTimeout = 75_000;
  server.headersTimeout = 30_000;
  server.on("clientError", refuse);
  let isClosing = false;
  // Told with the last answer, a client opens its next connection elsewhere; finding this one closed, it would fail.
  server.prependListener("request", (_, response) => void (isClosing && response.setHeader("connection", "close")));
  const address = server.address();
  return {
    port: typeof address === "object" && address ? address.port : port,
    async [Symbol.asyncDispose]() {
      isClosing = true;
      if (noticeSeconds > 0) await new Promise((done) => setTimeout(done, noticeSeconds * 1_000));
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeIdleConnections();
      const idling = setInterval(() => server.closeIdleConnections(), 50);
      const cut = setTimeout(() => server.closeAllConnections(), drainSeconds * 1_000);
      await closed;
      clearInterval(idling);
      clearTimeout(cut);
    },
  };
}

/** What is not HTTP at all still gets the envelope. */
function refuse(error: Error & { code?: string }, socket: Socket): void {
  if (error.code === "ECONNRESET" || !socket.writable) return void socket.destroy();
  const requestId = newId("request");
  const tooLong = error.code === "HPE_HEADER_OVERFLOW";
  const details = {
    field: "request",
    value: null,
    expected: tooLong ? "headers of at most 16 KB" : "an HTTP/1.1 request",
    example: "GET /v1/agents",
  };
  const body = JSON.stringify({
    error: { code: "validation_failed", message: "The request could not be read", request_id: requestId, details },
  });
  socket.end(
    `HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-request-id: ${requestId}\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
}
