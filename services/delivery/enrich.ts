/**
 * What an agent knows about the events it is handed: the nearest of its memories, asked of the memory service when the
 * delivery is read. A delivery never waits long for it and never fails for it; what could not be had in time is left
 * out, and the delivery says so.
 */
import type { DeliveryContext } from "../../contracts/deliveries.ts";
import type { QueuedDelivery } from "../../contracts/pipeline.ts";
import type { Bus } from "../../runtime/bus.ts";
import { measure } from "../../runtime/measure.ts";
import type { AgentRef } from "./delivery-id.ts";

export interface Wanted {
  readonly key: string;
  readonly depth: QueuedDelivery["enrichment"];
  readonly event: object;
}

/** Context by key, for those that want any. */
export type Enrich = (
  owner: AgentRef,
  team: string | undefined,
  wanted: readonly Wanted[],
) => Promise<ReadonlyMap<string, DeliveryContext>>;

/** A poll is not held up longer than a person would notice. */
const BUDGET_MS = 200;
/** Ten whole memories each: a larger question would not fit into one answer of the bus. */
const EVENTS_A_QUESTION = 10;
/** What memories may add to one answer; the events themselves have the other half of it. */
const ROOM_BYTES = 4 * 1024 * 1024;
const TEXT_CHARACTERS = 2_000;
const nothing: DeliveryContext = { memories: [], incomplete: true };

export const enrichOver = (bus: Pick<Bus, "ask">): Enrich => async (owner, team, wanted) => {
  const asked = wanted.filter(({ depth }) => depth !== "none");
  const contexts = new Map<string, DeliveryContext>(asked.map(({ key }) => [key, nothing]));
  if (asked.length === 0) return contexts;
  const signal = AbortSignal.timeout(BUDGET_MS);
  const origin = { caller: { kind: "service", name: "delivery" }, requestId: "", seed: "" } as const;
  let room = ROOM_BYTES;
  await Promise.all(
    inParts(asked, EVENTS_A_QUESTION).map(async (part) => {
      const queries = part.map(({ key, depth, event }) => ({
        key,
        depth: depth as "light" | "full",
        text: textOf(event),
      }));
      const body = { tenant: owner.tenant, agent: owner.agent, team: team ?? null, queries };
      try {
        const answer = await bus.ask("memory.enrich", { path: {}, query: {}, body }, origin, signal);
        room -= answer.bytes.length;
        if (room < 0) return;
        for (const { key, memories, incomplete } of answer.read().results) {
          contexts.set(key, { memories, ...(incomplete ? { incomplete: true as const } : {}) });
        }
      } catch {
        // Away or late. The context stays as it was: empty, and said to be incomplete.
      }
    }),
  );
  const missing = [...contexts.values()].filter((context) => context === nothing).length;
  if (missing > 0) measure().notEnriched.add(missing, { tenant: owner.tenant });
  return contexts;
};

/** What an event says, in words: its type and subject, then every text and number in its data. */
export function textOf(event: object): string {
  const { type, subject, data } = event as { type?: string; subject?: string; data?: unknown };
  const words: string[] = [];
  let length = 0;
  const say = (value: unknown): void => {
    if (length >= TEXT_CHARACTERS || value === null || value === undefined) return;
    if (typeof value === "object") return Object.values(value).forEach(say);
    const word = String(value);
    words.push(word);
    length += word.length + 1;
  };
  say(type?.replaceAll(".", " "));
  say(subject);
  say(data);
  return words.join(" ").slice(0, TEXT_CHARACTERS);
}

const inParts = <T>(items: readonly T[], size: number): T[][] =>
  Array.from({ length: Math.ceil(items.length / size) }, (_, i) => items.slice(i * size, (i + 1) * size));
