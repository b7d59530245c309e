/** A reader of server-sent events that takes one at a time, and nothing it is not asked to take. */
import { Delivery } from "../../contracts/deliveries.ts";

export interface Frame {
  id?: string;
  event?: string;
  data?: string;
  comment?: string;
}

export interface Reading extends Disposable {
  readonly response: Response;
  /** Undefined once the stream has ended. */
  frame(): Promise<Frame | undefined>;
  /** The next one, past comments. */
  delivery(): Promise<Delivery>;
  leave(): void;
}

export async function readStream(
  url: string,
  { token }: { readonly token: string },
  lastEventId?: string,
): Promise<Reading> {
  const leave = new AbortController();
  const response = await fetch(url, {
    headers: {
      authorization: `Bearer ${token}`,
      ...(lastEventId === undefined ? {} : { "last-event-id": lastEventId }),
    },
    signal: leave.signal,
  });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  const frame = async (): Promise<Frame | undefined> => {
    while (!text.includes("\n\n")) {
      const { value, done } = await reader.read();
      if (done) return undefined;
      text += value;
    }
    const [lines] = text.split("\n\n", 1);
    text = text.slice(lines!.length + 2);
    return Object.fromEntries(
      lines!.split("\n").map((line) => {
        const at = line.indexOf(": ");
        return [line.slice(0, at) || "comment", line.slice(at + 2)];
      }),
    );
  };
  const delivery = async (): Promise<Delivery> => {
    for (;;) {
      const next = await frame();
      if (!next) throw new Error("The stream has ended");
      if (next.data) return Delivery.parse(JSON.parse(next.data));
    }
  };
  return { response, frame, delivery, leave: () => leave.abort(), [Symbol.dispose]: () => leave.abort() };
}
