/** Everything the registry has announced, held in memory, and the means to know that it is up to date. */
import type { NatsConnection } from "@nats-io/nats-core";
import type { KvEntry } from "@nats-io/kv";
import { unavailable } from "../../contracts/errors.ts";
import { AgentRoute, FeedRoute, InterestRoute } from "../../contracts/routes.ts";
import { buckets } from "../../contracts/streams.ts";
import { parseRouteKey, type RouteKey, routeKeys } from "../../contracts/subjects.ts";
import { isLive, watchBucket } from "../../runtime/buckets.ts";
import type { Log } from "../../runtime/log.ts";
import type { Publisher } from "../../runtime/publish.ts";
import { filters } from "./filter.ts";
import { type TenantRoutes, tenantRoutes } from "./match.ts";

export interface Routes extends AsyncDisposable {
  /** Settles when the watch is in place and everything announced so far is known. */
  readonly ready: Promise<void>;
  /**
   * Resolves once everything announced before this call is known here, with the means to check that it still is: a
   * watch that had to begin anew knows less for a moment. Rejects after five seconds.
   */
  barrier(): Promise<Barrier>;
  /** What is known of a tenant now; meaningful in the same breath as a barrier that `isHeld`. */
  of(tenant: string): TenantRoutes | undefined;
}

export interface Barrier {
  isHeld(): boolean;
  /** Resolves when it is held again. */
  again(): Promise<void>;
}

const WAIT_MS = 5_000;

export function startRoutes(nc: NatsConnection, publisher: Publisher, log: Log): Routes {
  // Moments can be compared where one clock gives them. Across the clocks of a cluster, what is gone is simply gone.
  const known = knownRoutes(nc.info?.cluster ? () => undefined : storedAtMs);
  let waiting: { seq: number; resolve: () => void }[] = [];
  const watch = watchBucket({
    nc,
    bucket: buckets.routes,
    log,
    apply(entry) {
      try {
        known.apply(entry);
      } catch (error) {
        // One entry that cannot be read must not hide those after it.
        log.error("routes.entry_unreadable", { key: entry.key, error });
      }
      if (waiting.length === 0) return;
      const due = waiting.filter(({ seq }) => seq <= known.applied());
      if (due.length > 0) waiting = waiting.filter(({ seq }) => seq > known.applied());
      for (const { resolve } of due) resolve();
    },
  });
  const reach = async (seq: number) => {
    if (known.applied() >= seq) return;
    const reached = Promise.withResolvers<void>();
    const entry = { seq, resolve: reached.resolve };
    waiting.push(entry);
    const timer = setTimeout(() => {
      waiting = waiting.filter((other) => other !== entry);
      reached.reject(unavailable("The registry's announcements do not come through"));
    }, WAIT_MS);
    await reached.promise.finally(() => clearTimeout(timer));
  };
  return {
    ready: watch.ready,
    async barrier() {
      const { seq } = await publisher.publish(`$KV.${buckets.routes.name}.${routeKeys.barrier}`, "");
      await reach(seq);
      return { isHeld: () => known.applied() >= seq, again: () => reach(seq) };
    },
    of: known.of,
    [Symbol.asyncDispose]: () => watch[Symbol.asyncDispose](),
  };
}

/** The state alone. Entries come in the order they were written, and from the first again when a watch was broken. */
export function knownRoutes(goneAtMs: (entry: KvEntry) => number | undefined = storedAtMs) {
  let shared = filters();
  const tenants = new Map<string, TenantRoutes>();
  let applied = 0;
  return {
    applied: () => applied,
    of: (tenant: string) => tenants.get(tenant),
    apply(entry: KvEntry) {
      // Back to the beginning: what was removed while nobody watched is not told, so all is forgotten first.
      if (entry.revision < applied) {
        tenants.clear();
        shared = filters();
      }
      applied = entry.revision;
      const key = parseRouteKey(entry.key);
      if (!key) return;
      let tenant = tenants.get(key.tenant);
      if (!tenant) tenants.set(key.tenant, tenant = tenantRoutes(shared));
      if (isLive(entry)) learn(tenant, key, entry);
      else forget(tenant, key, goneAtMs(entry));
    },
  };
}

function learn(tenant: TenantRoutes, key: RouteKey, entry: KvEntry): void {
  switch (key.kind) {
    case "agent":
      return tenant.setAgent(key.agent, AgentRoute.parse(entry.json()).status === "active");
    case "interest":
      return tenant.setInterest(key.agent, key.interest, InterestRoute.parse(entry.json()));
    case "member":
      return tenant.addMember(key.channel, key.agent);
    case "feed":
      return tenant.setFeed(key.channel, key.feed, FeedRoute.parse(entry.json()));
  }
}

function forget(tenant: TenantRoutes, key: RouteKey, goneAtMs: number | undefined): void {
  switch (key.kind) {
    case "agent":
      return tenant.removeAgent(key.agent);
    case "interest":
      return tenant.removeInterest(key.interest, goneAtMs);
    case "member":
      return tenant.removeMember(key.channel, key.agent);
    case "feed":
      return tenant.removeFeed(key.feed, goneAtMs);
  }
}

/** With fractions of a millisecond, which the client has but rounds away. */
function storedAtMs(entry: KvEntry): number {
  const ns = (entry as { sm?: { info?: { timestampNanos?: number } } }).sm?.info?.timestampNanos;
  return ns === undefined ? entry.created.getTime() : ns / 1e6;
}
