/** How a connector logs in and what it does when a broker misbehaves, against an AMQP 1.0 peer of the test's own. */
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import type { AddressInfo, Server } from "node:net";
import { join } from "node:path";
import { promisify } from "node:util";
import rhea from "rhea";
import { describe, expect, test } from "vitest";
import { Fault, unavailable } from "../../contracts/errors.ts";
import type { Published } from "../../contracts/events.ts";
import type { AmqpSecrets, AmqpSettings, ConnectorRoute, ConnectorStatus } from "../../contracts/ingestion.ts";
import { silent } from "../../runtime/log.ts";
import { openLink } from "../../services/connector/amqp.ts";
import { delayAfter, type Outcome, startReader } from "../../services/connector/reader.ts";
import type { Received } from "../../services/connector/message.ts";
import { eventually } from "../support/eventually.ts";
import { temporaryFolder } from "../support/servers.ts";

type Container = ReturnType<typeof rhea.create_container>;

interface Peer extends AsyncDisposable {
  readonly port: number;
  readonly container: Container;
  /** Ends every connection, as a broker does that goes away. */
  drop(): void;
}

async function peer(options: Record<string, unknown> = {}, prepare: (c: Container) => void = () => {}): Promise<Peer> {
  const container = rhea.create_container({ id: "peer" });
  for (const event of ["connection_error", "protocol_error", "error", "disconnected"]) container.on(event, () => {});
  prepare(container);
  const server = container.listen({ port: 0, host: "127.0.0.1", ...options }) as unknown as Server;
  const sockets = new Set<{ destroy(): void }>();
  server.on("connection", (socket) => sockets.add(socket));
  await once(server, "listening");
  const drop = () => {
    for (const socket of sockets) socket.destroy();
    sockets.clear();
  };
  return {
    port: (server.address() as AddressInfo).port,
    container,
    drop,
    async [Symbol.asyncDispose]() {
      drop();
      await new Promise((done) => server.close(done));
    },
  };
}

const settings = (port: number, more: Partial<AmqpSettings> = {}): AmqpSettings => ({
  host: "127.0.0.1",
  port,
  tls: null,
  sasl: "plain",
  username: "reader",
  address: "orders",
  credit: 10,
  ...more,
});

describe("logging in", () => {
  const plain = (container: Container) =>
    container.sasl_server_mechanisms.enable_plain((user: string, pass: string) =>
      user === "reader" && pass === "right"
    );
  const tried = async (peer: Peer, more: Partial<AmqpSettings>, secrets: AmqpSecrets = {}) => {
    await using _link = await openLink("test", settings(peer.port, more), secrets, () => {});
    return "open";
  };

  test("PLAIN, with the right password only", async () => {
    await using broker = await peer({ require_sasl: true }, plain);
    expect(await tried(broker, {}, { password: "right" })).toBe("open");
    await expect(tried(broker, {}, { password: "wrong" })).rejects.toThrow(/authenticat|unauthorized/i);
  });

  test("ANONYMOUS, where the broker lets anyone in", async () => {
    await using broker = await peer({}, (container) => container.sasl_server_mechanisms.enable_anonymous());
    expect(await tried(broker, { sasl: "anonymous", username: undefined })).toBe("open");
    await using closed = await peer({ require_sasl: true }, plain);
    await expect(tried(closed, { sasl: "anonymous", username: undefined })).rejects.toThrow();
  });

  test("EXTERNAL over TLS, by a certificate; and no broker is trusted whose certificate is not", async () => {
    await using folder = await temporaryFolder();
    const made = await certificates(folder.path);
    if (typeof made === "string") return console.warn(`\nSKIPPED: TLS of connectors, because ${made}\n`);
    const { ca, server, client } = made;
    await using broker = await peer({
      transport: "tls",
      key: server.key,
      cert: server.cert,
      ca,
      requestCert: true,
      rejectUnauthorized: true,
      enable_sasl_external: true,
    });
    const tls = { ca, cert: client.cert, servername: "localhost" };
    expect(await tried(broker, { sasl: "external", tls }, { key: client.key })).toBe("open");
    await expect(tried(broker, { sasl: "external", tls: { ...tls, ca: undefined } }, { key: client.key })).rejects
      .toThrow(/certificate/i);
    await expect(tried(broker, { sasl: "external", tls: { ...tls, servername: "elsewhere" } }, { key: client.key }))
      .rejects.toThrow(/elsewhere|altnames/i);
  });

  test("a broker that is not there, or speaks something else, is an error with a reason", async () => {
    await expect(openLink("test", settings(1), { password: "x" }, () => {})).rejects.toThrow(/ECONNREFUSED/);
  });
});

/** Certificates that sign each other, made by openssl where there is one. */
async function certificates(folder: string) {
  const run = promisify(execFile);
  const openssl = (...args: string[]) => run("openssl", args, { cwd: folder });
  try {
    const fresh = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    await openssl("req", "-x509", ...fresh, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2");
    for (const name of ["localhost", "reader"]) {
      await openssl("req", ...fresh, "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", `/CN=${name}`);
      await openssl(
        ...["x509", "-req", "-in", `${name}.csr`, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"],
        ...["-out", `${name}.pem`, "-days", "2"],
      );
    }
  } catch (error) {
    return `openssl is not there: ${(error as Error).message.split("\n")[0]}`;
  }
  const read = (name: string) => readFile(join(folder, name), "utf8");
  const pair = async (name: string) => ({ cert: await read(`${name}.pem`), key: await read(`${name}.key`) });
  return { ca: await read("ca.pem"), server: await pair("localhost"), client: await pair("reader") };
}

describe("reading", () => {
  const anonymous = (container: Container) => container.sasl_server_mechanisms.enable_anonymous();

  function reader(port: number, ingest: (message: Received) => Promise<Published>, credit = 10) {
    const statuses: [ConnectorStatus, string | undefined][] = [];
    const outcomes: Outcome[] = [];
    const counts = { received: 0, reconnects: 0 };
    let isHigh = false;
    const listeners = new Set<() => void>();
    const route: ConnectorRoute = {
      tenant: "ten_a",
      source: "shop",
      settings: settings(port, { sasl: "anonymous", credit }),
      mapping: null,
      paused: false,
      sealed: "",
    };
    const started = startReader({
      id: "con_test",
      route,
      secrets: {},
      ingest,
      pressure: {
        isHigh: () => isHigh,
        onEase: (listener) => {
          listeners.add(listener);
          return { stop: () => listeners.delete(listener) };
        },
      },
      note: {
        status: (status, error) => void statuses.push([status, error]),
        reconnected: () => void counts.reconnects++,
        received: () => void counts.received++,
        settled: (outcome) => void outcomes.push(outcome),
      },
      log: silent,
    });
    return {
      statuses,
      outcomes,
      counts,
      load: started.load,
      press: (high: boolean) => {
        isHigh = high;
        if (!high) { for (const listener of listeners) listener(); }
      },
      [Symbol.asyncDispose]: () => started[Symbol.asyncDispose](),
    };
  }

  /** Sends on every link as credit allows, and remembers what became of each. */
  function source(container: Container, messages: string[]) {
    const settled: Record<string, string> = {};
    const state = { links: 0, sent: 0 };
    const waiting = [...messages];
    container.on("sender_open", () => void state.links++);
    container.on("sendable", ({ sender }: { sender: { sendable(): boolean; send(m: unknown): { id: number } } }) => {
      while (sender.sendable() && waiting.length > 0) {
        const body = waiting.shift()!;
        const delivery = sender.send({ body, message_id: body }) as { id: number; text?: string };
        delivery.text = body;
        state.sent++;
      }
    });
    for (const outcome of ["accepted", "rejected", "released"]) {
      container.on(outcome, ({ delivery }: { delivery: { text: string } }) => {
        settled[delivery.text] = outcome;
        if (outcome === "released") waiting.push(delivery.text);
      });
    }
    return { settled, state };
  }
  const stored = (status: "accepted" | "duplicate" = "accepted"): Published => ({ event_id: "e", status });

  test("a message is accepted only once its event is stored", async () => {
    const gate = Promise.withResolvers<void>();
    let source_: ReturnType<typeof source> | undefined;
    await using broker = await peer({}, (c) => {
      anonymous(c);
      source_ = source(c, ["a"]);
    });
    await using r = reader(broker.port, async () => {
      await gate.promise;
      return stored();
    });
    await eventually(() => source_!.state.sent === 1, "the message to be sent");
    await eventually(() => r.counts.received === 1, "the message to be received");
    expect(source_!.settled).toEqual({});
    expect(r.outcomes).toEqual([]);
    const { oldest_unsettled_at, ...load } = r.load();
    expect(load).toEqual({ unsettled: 1, credit: 9, waiting: null });
    expect(Date.parse(oldest_unsettled_at!)).toBeLessThanOrEqual(Date.now());
    gate.resolve();
    await eventually(() => source_!.settled.a === "accepted", "it to be accepted");
    expect(r.outcomes).toEqual(["accepted"]);
    await eventually(() => r.load().unsettled === 0, "nothing to be in hand");
    expect(r.load()).toEqual({ unsettled: 0, oldest_unsettled_at: null, credit: 9, waiting: null });
  });

  test("no more than the credit is under way, and none is asked for under pressure", async () => {
    const messages = Array.from({ length: 40 }, (_, n) => `m${n}`);
    await using broker = await peer({}, (c) => {
      anonymous(c);
      source(c, messages);
    });
    let underWay = 0;
    let most = 0;
    let taken = 0;
    const gates: (() => void)[] = [];
    await using r = reader(broker.port, async () => {
      taken++;
      most = Math.max(most, ++underWay);
      await new Promise<void>((open) => gates.push(open));
      underWay--;
      return stored();
    }, 6);
    await eventually(() => gates.length === 6, "six to be under way");
    r.press(true);
    for (const open of gates.splice(0)) open();
    await eventually(() => r.outcomes.length === 6, "six to be stored");
    await eventually(() => r.statuses.at(-1)![0] === "held", "the reader to hold");
    expect(taken).toBe(6);
    r.press(false);
    await eventually(() => {
      for (const open of gates.splice(0)) open();
      return r.outcomes.length === 40;
    }, "all to be stored");
    expect(most).toBe(6);
  });

  test("while the pipeline is away a message is held, and stored when it is back", async () => {
    let source_: ReturnType<typeof source> | undefined;
    await using broker = await peer({}, (c) => {
      anonymous(c);
      source_ = source(c, ["a"]);
    });
    let tries = 0;
    await using r = reader(broker.port, () => {
      if (++tries < 3) return Promise.reject(unavailable("away"));
      return Promise.resolve(stored());
    });
    await eventually(() => source_!.settled.a === "accepted", "it to be accepted");
    expect({ tries, outcomes: r.outcomes }).toEqual({ tries: 3, outcomes: ["accepted"] });
  });

  test("what can never be an event is rejected, and what nobody can explain after a few tries", async () => {
    let source_: ReturnType<typeof source> | undefined;
    await using broker = await peer({}, (c) => {
      anonymous(c);
      source_ = source(c, ["bad", "riddle", "good"]);
    });
    await using r = reader(broker.port, ({ message_id }) => {
      if (message_id === "bad") {
        return Promise.reject(new Fault("invalid_event", "no action", { field: "a", value: 1, expected: "b" }));
      }
      if (message_id === "riddle") return Promise.reject(new Fault("internal_error", "?", {}));
      return Promise.resolve(stored());
    });
    await eventually(() => Object.keys(source_!.settled).length === 3, "all to be settled");
    expect(source_!.settled).toEqual({ bad: "rejected", riddle: "rejected", good: "accepted" });
    expect(r.outcomes).toContainEqual({ rejected: "no action" });
  });

  test("a link that breaks is opened again, and what was in hand comes again", async () => {
    let source_: ReturnType<typeof source> | undefined;
    await using broker = await peer({}, (c) => {
      anonymous(c);
      source_ = source(c, []);
    });
    await using r = reader(broker.port, () => Promise.resolve(stored()));
    await eventually(() => source_!.state.links === 1, "a link");
    broker.drop();
    await eventually(() => source_!.state.links === 2, "another link");
    broker.drop();
    await eventually(() => source_!.state.links === 3, "a third link");
    expect(r.statuses.filter(([, error]) => error !== undefined).length).toBeGreaterThanOrEqual(2);
    await eventually(() => r.counts.reconnects === 2, "both to be counted");
  });

  test("stopping gives back what is not stored", async () => {
    let source_: ReturnType<typeof source> | undefined;
    await using broker = await peer({}, (c) => {
      anonymous(c);
      source_ = source(c, ["a"]);
    });
    let tries = 0;
    const r = reader(broker.port, () => {
      tries++;
      return Promise.reject(unavailable("away"));
    });
    await eventually(() => tries > 0, "a try");
    await r[Symbol.asyncDispose]();
    await eventually(() => source_!.settled.a === "released", "it to be released");
    expect(r.outcomes).toEqual(["released"]);
    expect(r.load()).toEqual({ unsettled: 0, oldest_unsettled_at: null, credit: 0, waiting: null });
  });

  test("delays double up to half a minute, each with jitter over its upper half", () => {
    const range = (failures: number) => [delayAfter(failures, () => 0), delayAfter(failures, () => 1)];
    expect(range(1)).toEqual([125, 250]);
    expect(range(4)).toEqual([1_000, 2_000]);
    expect(range(50)).toEqual([15_000, 30_000]);
  });
});
