/** The options that say how a message from outside becomes an event; webhooks and connectors share them. */
import { type Command, InvalidArgumentError } from "commander";
import type { Mapping } from "../../contracts/ingestion.ts";

export interface MappingOptions {
  readonly mapping?: string;
  readonly entity?: string;
  readonly action?: string;
  readonly entityId?: string;
  readonly id?: string;
  readonly subject?: string;
  readonly time?: string;
  readonly data?: string;
}

export const withMapping = (command: Command): Command =>
  command
    .option("--entity <place>", "what it is about: the third word of the event's type")
    .option("--action <place>", "what happened to it: the last word of the event's type")
    .option("--entity-id <place>", "the entity's own id")
    .option("--id <place>", "the event's id; the hash of the body when left out")
    .option("--subject <place>", "the event's subject; entity/entity-id when left out")
    .option("--time <place>", "when it happened; when it came in when left out")
    .option("--data <pointer>", "the part of the body that agents receive; all of it when left out")
    .option("--mapping <json>", 'all of these at once, for programs: {"entity": …, "action": …, "entity_id": …}')
    .addHelpText(
      "after",
      "\nA place is a JSON pointer into the body (/order/id), a header (header:x-event), or a text that may hold those " +
        "in braces (order, shop-{/id}).",
    );

/** Null when none of them was given. */
export function mappingIn(options: MappingOptions): Mapping | null {
  const { entity, action, entityId, id, subject, time, data } = options;
  if (options.mapping !== undefined) return asJson(options.mapping);
  const rest = { entity_id: entityId, id, subject, time, data };
  if ([entity, action, ...Object.values(rest)].every((place) => place === undefined)) return null;
  if (entity === undefined || action === undefined) {
    throw new InvalidArgumentError("A mapping needs --entity and --action");
  }
  return { entity, action, ...Object.fromEntries(Object.entries(rest).filter(([, place]) => place !== undefined)) };
}

/** What is in it is checked where it is stored. */
function asJson(text: string): Mapping {
  try {
    return JSON.parse(text) as Mapping;
  } catch (error) {
    throw new InvalidArgumentError(`--mapping is not JSON: ${(error as Error).message}`);
  }
}
