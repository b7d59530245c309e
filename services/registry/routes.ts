/** Rows as announcements, in one place for the change that makes them and the rebuild that repeats them. */
import type { Feed, Member } from "../../contracts/channels.ts";
import type { WebhookRoutes } from "../../contracts/ingestion.ts";
import type { Agent, Interest } from "../../contracts/registry.ts";
import { AgentRoute, FeedRoute, InterestRoute } from "../../contracts/routes.ts";
import { routeKeys, webhookKey } from "../../contracts/subjects.ts";
import type { Announcement } from "./announce.ts";
import type { ConnectorRow } from "./store/connectors.ts";

export const agentRoute = (agent: Agent): Announcement => ({
  bucket: "routes",
  key: routeKeys.agent(agent.tenant_id, agent.id),
  value: AgentRoute.parse(agent),
});

export const interestRoute = (interest: Interest): Announcement => ({
  bucket: "routes",
  key: routeKeys.interest(interest.tenant_id, interest.agent_id, interest.id),
  value: InterestRoute.parse(interest),
});

/** Org-admins have no queue, so their membership routes nothing. */
export const memberRoute = (tenant: string, member: Member): Announcement | undefined =>
  member.participant_type === "agent"
    ? { bucket: "routes", key: routeKeys.member(tenant, member.channel_id, member.participant_id), value: {} }
    : undefined;

export const feedRoute = (tenant: string, feed: Feed): Announcement => ({
  bucket: "routes",
  key: routeKeys.feed(tenant, feed.channel_id, feed.id),
  value: FeedRoute.parse(feed),
});

export const webhookRoutes = (slug: string, routes: WebhookRoutes): Announcement => ({
  bucket: "webhooks",
  key: webhookKey(slug),
  value: routes,
});

export const connectorRoute = (
  { id, tenant_id, source, settings, mapping, paused, secrets_sealed }: ConnectorRow,
): Announcement => ({
  bucket: "connectors",
  key: id,
  value: { tenant: tenant_id, source, settings, mapping, paused, sealed: secrets_sealed.toString("base64") },
});

/** That the announced thing is no more. */
export const gone = ({ bucket, key, ttlSeconds }: Announcement): Announcement => ({ bucket, key, ttlSeconds });
