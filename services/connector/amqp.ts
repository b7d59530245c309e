/** A link to an AMQP 1.0 broker: opened, given credit, closed. It does not reconnect; whoever holds it does. */
import { isIP } from "node:net";
import {
  Connection,
  ConnectionEvents,
  type ConnectionOptions,
  type Delivery,
  type Message,
  type Receiver,
} from "rhea-promise";
import type { AmqpSecrets, AmqpSettings } from "../../contracts/ingestion.ts";

export interface Link extends AsyncDisposable {
  /** How many more messages the broker may send. */
  addCredit(count: number): void;
  /** How many messages wait at the broker; undefined where it does not say. */
  waiting(): number | undefined;
  /** Settles with the reason when the link ends, whoever ended it. */
  readonly ended: Promise<string>;
}

export type OnMessage = (message: Message, delivery: Pick<Delivery, "accept" | "reject" | "release">) => void;

const OPEN_SECONDS = 10;
/** A broker from which nothing came for this long is gone; half of it is when it must at least say so. */
const IDLE_MS = 30_000;
const CLOSE_MS = 2_000;

/** `name` names us to the broker: the same for every owner of a connector, so that a durable subscription is one. */
export async function openLink(
  name: string,
  settings: AmqpSettings,
  secrets: AmqpSecrets,
  onMessage: OnMessage,
  abortSignal?: AbortSignal,
): Promise<Link> {
  const ended = Promise.withResolvers<string>();
  const connection = new Connection(optionsOf(name, settings, secrets));
  // Without a listener rhea throws what it has to say.
  for (const event of [ConnectionEvents.connectionError, ConnectionEvents.protocolError, ConnectionEvents.error]) {
    connection.on(event, ({ error }) => ended.resolve(`connection: ${reasonIn(error ?? connection.error)}`));
  }
  connection.on(ConnectionEvents.connectionClose, () => ended.resolve(`closed: ${reasonIn(connection.error)}`));
  connection.on(ConnectionEvents.disconnected, ({ error }) => ended.resolve(`disconnected: ${reasonIn(error)}`));
  try {
    await connection.open({ abortSignal });
    let waiting: number | undefined;
    const receiver: Receiver = await connection.createReceiver({
      name,
      source: { address: settings.address, durable: 2, expiry_policy: "never" },
      abortSignal,
      credit_window: 0,
      autoaccept: false,
      onMessage: ({ message, delivery }) => {
        if (waiting) waiting--;
        if (message && delivery) onMessage(message, delivery);
      },
      onError: () => ended.resolve(`link: ${reasonIn(receiver?.error)}`),
      onClose: () => ended.resolve(`link closed: ${reasonIn(receiver?.error)}`),
      onSessionError: () => ended.resolve(`session: ${reasonIn(receiver?.session.error)}`),
      onSessionClose: () => ended.resolve(`session closed: ${reasonIn(receiver?.session.error)}`),
    });
    overhear(receiver, (available) => waiting = available);
    return {
      waiting: () => waiting,
      addCredit: (count) => receiver.addCredit(count),
      ended: ended.promise,
      async [Symbol.asyncDispose]() {
        ended.resolve("closed by us");
        await close(connection);
      },
    };
  } catch (error) {
    await close(connection);
    throw new Error(reasonIn(error), { cause: error });
  }
}

/**
 * AMQP 1.0 knows no question about the depth of a queue. A sender may say how much awaits credit when it answers a grant
 * of it, as RabbitMQ does; rhea reads that and tells nobody.
 */
function overhear(receiver: Receiver, hear: (available: number) => void): void {
  const link = receiver["_link"] as unknown as { on_flow(frame: { performative: { available?: number } }): void };
  const heed = link.on_flow;
  link.on_flow = function (frame) {
    if (typeof frame.performative.available === "number") hear(frame.performative.available);
    heed.call(this, frame);
  };
}

function optionsOf(
  name: string,
  { host, port, tls, sasl, username }: AmqpSettings,
  { password, key }: AmqpSecrets,
): ConnectionOptions {
  const base = {
    host,
    port,
    container_id: name,
    reconnect: false,
    operationTimeoutInSeconds: OPEN_SECONDS,
    idle_time_out: IDLE_MS,
    ...(sasl === "plain" ? { username, password } : {}),
    // rhea asks for ANONYMOUS when there is a name and nothing to prove it with.
    ...(sasl === "anonymous" ? { username: username ?? "anonymous" } : {}),
    ...(sasl === "external" ? { enable_sasl_external: true } : {}),
  };
  if (!tls) return { ...base, transport: "tcp" } as ConnectionOptions;
  const servername = tls.servername ?? (isIP(host) ? undefined : host);
  const { ca, cert } = tls;
  return { ...base, transport: "tls", ca, cert, key, servername, rejectUnauthorized: true } as ConnectionOptions;
}

/** A connection that is broken may never say that it is closed. */
async function close(connection: Connection): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<void>((done) => timer = setTimeout(done, CLOSE_MS));
  await Promise.race([connection.close().catch(() => {}), late]);
  clearTimeout(timer);
  connection.removeAllSessions();
}

function reasonIn(error: unknown): string {
  if (!error) return "no reason given";
  const { condition, description, message, code } = error as Record<string, unknown>;
  return [condition ?? code, description ?? message].filter(Boolean).map(String).join(": ") || String(error);
}
