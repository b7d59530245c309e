/** What the registry announces to whoever routes events. Entries outlive deploys: a new field arrives optional. */
import { Feed } from "./channels.ts";
import { Agent, Interest } from "./registry.ts";

export const AgentRoute = Agent.pick({ status: true, delivery_mode: true, delivery_endpoint: true, team_id: true });
export const InterestRoute = Interest.pick({
  event_type: true,
  filter_expression: true,
  priority: true,
  enrichment_depth: true,
});
export const FeedRoute = Feed.pick({ event_type_glob: true, filter_expression: true });
