/** An embedder apart, with a small understanding of its own. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

/** Speaks OpenAI's request, and fails when told to. */
export async function embedder() {
  const state = { fails: false, calls: 0 };
  const server = createServer((request, response) => {
    let text = "";
    request.on("data", (data) => text += data);
    request.on("end", () => {
      state.calls++;
      if (state.fails) return void response.writeHead(500).end("out of order");
      const { input } = JSON.parse(text) as { input: string[] };
      const data = input.map((one, index) => ({ index, embedding: vectorOf(one) }));
      response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ data }));
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
  return Object.assign(state, {
    env: {
      MEMORY_EMBEDDER: "openai",
      MEMORY_OPENAI_URL: url,
      MEMORY_OPENAI_MODEL: "tiny",
      MEMORY_OPENAI_DIMENSION: "8",
    },
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      server.close();
    },
  });
}

/** Cats and felines are one thing to it. */
const vectorOf = (text: string) => {
  const has = (pattern: RegExp) => pattern.test(text) ? 1 : 0;
  return [has(/cat|feline/i), has(/car|vehicle/i), 0.1, 0, 0, 0, 0, 0];
};
