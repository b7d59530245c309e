/**
 * Announces everything again when the buckets have lost it: a new broker in front of an old database, or a bucket that
 * was deleted. A mark in each bucket says that the last such round was completed.
 */
import type { NatsConnection } from "@nats-io/nats-core";
import { buckets } from "../../contracts/streams.ts";
import { TOKEN_SECONDS } from "../../contracts/tokens.ts";
import { isLive, openBucket } from "../../runtime/buckets.ts";
import type { Tx } from "../../runtime/database.ts";
import type { Log } from "../../runtime/log.ts";
import type { Announcement, Announcer } from "./announce.ts";
import { agentRoute, connectorRoute, feedRoute, interestRoute, memberRoute, webhookRoutes } from "./routes.ts";
import type { Stores } from "./store/stores.ts";
import { RETIRED_SECONDS, revocation, signingTrust, stopped } from "./trust.ts";

const MARK = "complete";
const PAGE = 500;

export async function restoreAnnouncements(
  nc: NatsConnection,
  announcer: Announcer,
  stores: Stores,
  log: Log,
): Promise<void> {
  const marks = await Promise.all(
    [buckets.routes, buckets.trust, buckets.webhooks, buckets.connectors].map((bucket) => openBucket(nc, bucket)),
  );
  if ((await Promise.all(marks.map((kv) => kv.get(MARK)))).every(isLive)) return;
  const { agents, interests, channels, webhooks, connectors } = stores;
  await restoreTrust(announcer, stores);
  await everyRow(announcer, agents.after, agentRoute);
  await everyRow(announcer, interests.after, interestRoute);
  await everyRow(announcer, channels.membersAfter, (member) => memberRoute(member.tenant_id, member));
  await everyRow(announcer, channels.feedsAfter, (feed) => feedRoute(feed.tenant_id, feed));
  await everyRow(announcer, connectors.after, connectorRoute);
  await everyRow(
    announcer,
    async (tx, after, limit) =>
      await Promise.all(
        (await webhooks.tenantsAfter(tx, after, limit)).map(async ({ id, slug }) => ({
          id,
          slug,
          routes: await webhooks.routes(tx, id),
        })),
      ),
    ({ slug, routes }) => webhookRoutes(slug, routes),
  );
  for (const kv of marks) await kv.put(MARK, "{}");
  log.info("announcements.restored");
}

/** A page is read and announced in one transaction that holds its rows, so no newer change can be overtaken. */
async function everyRow<T extends { id: string }>(
  announcer: Announcer,
  read: (tx: Tx, after: string, limit: number) => Promise<T[]>,
  route: (row: T) => Announcement | undefined,
): Promise<void> {
  for (let after: string | undefined = ""; after !== undefined;) {
    const from: string = after;
    after = await announcer.change(async (tx, announce) => {
      const rows = await read(tx, from, PAGE);
      for (const row of rows) {
        const item = route(row);
        if (item) announce(item);
      }
      return rows.at(-1)?.id;
    });
  }
}

/** Whose tokens may still be about: the keys that sign them, the keys revoked and the agents stopped within the hour. */
const restoreTrust = (announcer: Announcer, { signingKeys, keys, agents }: Stores) =>
  announcer.change(async (tx, announce) => {
    await signingKeys.lockAll(tx);
    for (const key of await signingKeys.trusted(tx, RETIRED_SECONDS)) {
      announce(signingTrust(key, key.retired_at !== null));
    }
    for (const id of await keys.revokedWithin(tx, TOKEN_SECONDS)) announce(revocation(id));
    for (const id of await agents.stoppedWithin(tx, TOKEN_SECONDS)) announce(stopped(id));
  });
