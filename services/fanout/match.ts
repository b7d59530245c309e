/** Who in a tenant receives an event, and why. Pure: what is announced goes in, recipients come out. */
import type { z } from "zod";
import type { Match, QueuedDelivery } from "../../contracts/pipeline.ts";
import type { FeedRoute, InterestRoute } from "../../contracts/routes.ts";
import type { FilterScope } from "../../runtime/cel.ts";
import type { Filters, SharedFilter } from "./filter.ts";
import { compileGlob, type Glob, lettersOf } from "./glob.ts";

export interface Recipient extends Pick<QueuedDelivery, "matched" | "priority" | "enrichment"> {
  readonly agent: string;
}

export interface Matching {
  readonly recipients: Recipient[];
  /** How many filters failed on this event. */
  readonly filterErrors: number;
}

export interface TenantRoutes {
  setAgent(agent: string, isActive: boolean): void;
  removeAgent(agent: string): void;
  setInterest(agent: string, interest: string, route: z.output<typeof InterestRoute>): void;
  /** With the moment it went: an event stored before still matches it for a while. */
  removeInterest(interest: string, goneAtMs?: number): void;
  addMember(channel: string, agent: string): void;
  removeMember(channel: string, agent: string): void;
  setFeed(channel: string, feed: string, route: z.output<typeof FeedRoute>): void;
  removeFeed(feed: string, goneAtMs?: number): void;
  /** Active agents that an event stored then is for; `target` receives it whatever its interests say. */
  recipients(event: FilterScope, storedAtMs: number, target?: string): Matching;
  /** The same for one agent, active or not. */
  recipient(event: FilterScope, agent: string): Recipient;
}

interface Rule {
  readonly glob: Glob;
  readonly filter: SharedFilter | undefined;
  readonly filterSource: string | null;
  readonly why: Match;
  readonly priority: number;
  readonly enrichment: QueuedDelivery["enrichment"];
  /** Whom it is for; a channel's members change under it. */
  readonly agents: ReadonlySet<string>;
  goneAtMs?: number;
}

/**
 * How long a removed rule is remembered for events that were stored before it went. Fan-out is milliseconds behind as
 * a rule; one that is further behind than this goes by what there is now.
 */
const REMEMBERED_MS = 60_000;
const depths = { none: 0, light: 1, full: 2 } as const;

export function tenantRoutes(filters: Filters): TenantRoutes {
  const active = new Map<string, boolean>();
  const channels = new Map<string, Set<string>>();
  const rules = new Map<string, Rule>();
  const index = globIndex<Rule>();
  /** Removed rules, in the order they went. */
  const gone: Rule[] = [];

  const forget = (rule: Rule) => {
    index.remove(rule.glob, rule);
    if (rule.filterSource !== null) filters.release(rule.filterSource);
  };
  const forgetOld = () => {
    while (gone[0] && gone[0].goneAtMs! < Date.now() - REMEMBERED_MS) forget(gone.shift()!);
  };
  const remove = (id: string, goneAtMs?: number) => {
    const rule = rules.get(id);
    if (!rule) return;
    rules.delete(id);
    if (goneAtMs === undefined) return forget(rule);
    rule.goneAtMs = goneAtMs;
    gone.push(rule);
    forgetOld();
  };
  const set = (
    id: string,
    glob: string,
    filterSource: string | null,
    rest: Pick<Rule, "why" | "priority" | "enrichment" | "agents">,
  ) => {
    remove(id);
    const filter = filterSource === null ? undefined : filters.take(filterSource);
    const rule: Rule = { glob: compileGlob(glob), filter, filterSource, ...rest };
    rules.set(id, rule);
    index.add(rule.glob, rule);
  };
  const members = (channel: string) => {
    let agents = channels.get(channel);
    if (!agents) channels.set(channel, agents = new Set());
    return agents;
  };
  const matching = (event: FilterScope, storedAtMs: number, isWanted: (agent: string) => boolean) => {
    if (gone.length > 0) forgetOld();
    const found = new Map<string, Recipient>();
    let filterErrors = 0;
    for (const rule of index.matching(event.type)) {
      if (rule.goneAtMs !== undefined && rule.goneAtMs <= storedAtMs) continue;
      let passed: boolean | undefined;
      for (const agent of rule.agents) {
        if (!isWanted(agent)) continue;
        if (passed === undefined) {
          const verdict = rule.filter?.verdict(event) ?? "match";
          if (verdict === "error") filterErrors++;
          passed = verdict === "match";
        }
        if (!passed) break;
        found.set(agent, joined(found.get(agent), agent, rule));
      }
    }
    return { found, filterErrors };
  };

  return {
    setAgent: (agent, isActive) => void active.set(agent, isActive),
    removeAgent: (agent) => void active.delete(agent),
    setInterest: (agent, interest, { event_type, filter_expression, priority, enrichment_depth }) =>
      set(interest, event_type, filter_expression, {
        why: { interest_id: interest },
        priority,
        enrichment: enrichment_depth,
        agents: new Set([agent]),
      }),
    removeInterest: remove,
    addMember: (channel, agent) => void members(channel).add(agent),
    removeMember: (channel, agent) => void members(channel).delete(agent),
    setFeed: (channel, feed, { event_type_glob, filter_expression }) =>
      set(feed, event_type_glob, filter_expression, {
        why: { channel_id: channel, feed_id: feed },
        priority: 0,
        enrichment: "none",
        agents: members(channel),
      }),
    removeFeed: remove,
    recipients(event, storedAtMs, target) {
      const isActive = (agent: string) => active.get(agent) === true;
      const { found, filterErrors } = matching(event, storedAtMs, isActive);
      if (target !== undefined && isActive(target) && !found.has(target)) found.set(target, unmatched(target));
      return { recipients: [...found.values()], filterErrors };
    },
    recipient: (event, agent) =>
      matching(event, Infinity, (other) => other === agent).found.get(agent) ?? unmatched(agent),
  };
}

const unmatched = (agent: string): Recipient => ({ agent, matched: [], priority: 0, enrichment: "none" });

function joined(before: Recipient | undefined, agent: string, { why, priority, enrichment }: Rule): Recipient {
  if (!before) return { agent, matched: [why], priority, enrichment };
  return {
    agent,
    matched: [...before.matched, why],
    priority: Math.max(before.priority, priority),
    enrichment: depths[enrichment] > depths[before.enrichment] ? enrichment : before.enrichment,
  };
}

interface GlobIndex<T> {
  add(glob: Glob, value: T): void;
  remove(glob: Glob, value: T): void;
  matching(type: string): Iterable<T>;
}

/**
 * Patterns by what they begin with. A type is looked up once for itself and once for each length of prefix in use, a
 * few dozen at most, and only what begins alike is compared letter by letter.
 */
export function globIndex<T>(): GlobIndex<T> {
  const exact = new Map<string, Set<T>>();
  const byPrefix = new Map<string, Map<T, Glob>>();
  const lengths = new Map<number, number>();
  return {
    add(glob, value) {
      if (glob.isExact) return void entry(exact, glob.prefix, () => new Set<T>()).add(value);
      if (!byPrefix.has(glob.prefix)) lengths.set(glob.prefix.length, (lengths.get(glob.prefix.length) ?? 0) + 1);
      entry(byPrefix, glob.prefix, () => new Map<T, Glob>()).set(value, glob);
    },
    remove({ prefix, isExact }, value) {
      const values = isExact ? exact.get(prefix) : byPrefix.get(prefix);
      if (!values?.delete(value) || values.size > 0) return;
      if (isExact) return void exact.delete(prefix);
      byPrefix.delete(prefix);
      const left = lengths.get(prefix.length)! - 1;
      if (left > 0) lengths.set(prefix.length, left);
      else lengths.delete(prefix.length);
    },
    *matching(type) {
      yield* exact.get(type) ?? [];
      const letters = lettersOf(type);
      for (const length of lengths.keys()) {
        if (length > type.length) continue;
        for (const [value, glob] of byPrefix.get(type.slice(0, length)) ?? []) {
          if (glob.matches(letters)) yield value;
        }
      }
    },
  };
}

function entry<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  let value = map.get(key);
  if (value === undefined) map.set(key, value = make());
  return value;
}
