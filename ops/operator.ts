/** What every command of the operator needs: to ask a service, to print an answer, and to be sure. */
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { InvalidArgumentError } from "commander";
import { newId, ulid } from "../contracts/identity.ts";
import type { OperationName, Output, Sent } from "../contracts/operations.ts";
import { connectBus } from "../runtime/bus.ts";
import { silent } from "../runtime/log.ts";
import { findInstance } from "./instance.ts";

type Body<N extends OperationName> = Sent<N> extends { body?: infer B } ? NonNullable<B> : Record<never, never>;

/** Where a command is called from. */
export interface Terminal {
  readonly env: Readonly<Record<string, string | undefined>>;
  print(line: string): void;
  complain(line: string): void;
  /** All that comes in by standard input. */
  input(): Promise<string>;
  /** Undefined where nobody is at the keyboard. */
  readonly question?: (text: string) => Promise<string>;
}

export interface Operator {
  readonly env: Terminal["env"];
  /** Where the embedded instance is kept. */
  readonly dataDir: string;
  /** Asks one question and closes the bus again. */
  ask<N extends OperationName>(name: N, body: Body<N>): Promise<Output<N>>;
  /** Prints an answer for whoever reads it. */
  print(answer: unknown, forPeople: string): void;
  /** A line for people alone, while an answer takes its time. */
  say(line: string): void;
  /** Goes on only when it is meant: `yes` was given, or somebody at the keyboard says so. */
  confirm(what: string, options: { yes?: boolean }): Promise<void>;
  /** Where the gateway is reached from outside, without the version segment. */
  gatewayUrl(): Promise<string>;
  /** The id of a tenant that is named by its slug or its id. */
  tenantId(ref: string): Promise<string>;
  /** A file's text, or what comes in by `-`; a line end at its end is not part of it. */
  read(file: string): Promise<string>;
  /** The answer was printed, but it is not a good one. */
  fail(): void;
}

export function operator(terminal: Terminal, isJson: () => boolean, fail: () => void): Operator {
  const { env } = terminal;
  const dataDir = resolve(env.DATA_DIR || ".data");
  const ask: Operator["ask"] = async (name, body) => {
    const url = env.NATS_URL || (await findInstance(dataDir))?.nats_url;
    if (!url) throw new Error(`No instance runs in ${dataDir}: start one with npm start, or set DATA_DIR or NATS_URL`);
    await using bus = await connectBus(url, "operator", silent).catch((error) => {
      throw new Error(`The bus cannot be reached: ${error.message}`);
    });
    const origin = { caller: { kind: "operator" }, requestId: newId("request"), seed: ulid() } as const;
    return (await bus.ask(name, { path: {}, query: {}, body } as never, origin)).read();
  };
  return {
    env,
    dataDir,
    ask,
    print: (answer, forPeople) => terminal.print(isJson() ? JSON.stringify(answer ?? {}, null, 2) : forPeople),
    say: (line) => isJson() ? undefined : terminal.print(line),
    async confirm(what, { yes }) {
      if (yes) return;
      if (!terminal.question || isJson()) {
        throw new InvalidArgumentError(`${what}: add --yes to say that you mean it`);
      }
      const answer = await terminal.question(`${what}. Sure? [y/N] `);
      if (!/^y(es)?$/i.test(answer.trim())) throw new Error("Nothing was done");
    },
    async gatewayUrl() {
      const base = env.GATEWAY_URL || (await findInstance(dataDir))?.base_url;
      if (!base) throw new Error("Set GATEWAY_URL to where the gateway listens, such as http://127.0.0.1:8080");
      return base.replace(/\/+$/, "").replace(/\/v1$/, "");
    },
    async tenantId(ref) {
      const { tenants } = await ask("operator.tenant_list", {});
      const found = tenants.find(({ id, slug }) => id === ref || slug === ref);
      if (!found) throw new Error(`There is no tenant ${ref}`);
      return found.id;
    },
    read: async (file) => (file === "-" ? await terminal.input() : await readFile(file, "utf8")).replace(/\r?\n$/, ""),
    fail,
  };
}

/** What stands below the help of a command. */
export const example = (...lines: string[]): string =>
  `\nExample:\n${lines.map((line) => `  npm run ops -- ${line}`).join("\n")}\n`;

export const wholeNumber = (given: string): number => {
  if (!/^\d{1,9}$/.test(given)) throw new InvalidArgumentError("It must be a whole number.");
  return Number(given);
};
