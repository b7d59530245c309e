/** Tenants, agents, API keys and interests. */
import { z } from "zod";
import { Description, FilterExpression, HttpUrl, Moment, Name, Page, TeamId, TypeGlob } from "./fields.ts";
import { idOf, Scope } from "./identity.ts";

export const clientTypes = ["claude", "chatgpt", "gemini", "copilot", "cursor", "other"] as const;

export const AgentStatus = z.enum(["active", "inactive"]);
export const DeliveryMode = z.enum(["poll", "push", "sse"]);
export const ClientType = z.enum(clientTypes);

export const Agent = z.object({
  id: idOf("agent"),
  tenant_id: idOf("tenant"),
  name: Name,
  description: Description,
  status: AgentStatus,
  delivery_mode: DeliveryMode,
  delivery_endpoint: HttpUrl.optional().describe("Present when set"),
  client_type: ClientType,
  team_id: TeamId.nullable(),
  created_at: Moment,
  updated_at: Moment,
}).meta({ id: "Agent" });
export type Agent = z.output<typeof Agent>;

export const AgentPath = z.object({ id: idOf("agent") });

export const AgentRegistration = z.object({
  name: Name,
  description: Description.default(null),
  delivery_mode: DeliveryMode,
  client_type: ClientType,
  team_id: TeamId.nullable().default(null),
});
export type AgentRegistration = z.output<typeof AgentRegistration>;

export const AgentChange = z.object({
  name: Name,
  description: Description,
  delivery_mode: DeliveryMode,
  delivery_endpoint: HttpUrl.nullable(),
}).partial();
export type AgentChange = z.output<typeof AgentChange>;

export const ChangedAgent = Agent.extend({
  push_secret: z.string().optional()
    .describe("What pushes are signed with; in the answer that first sets a delivery_endpoint, and shown this once"),
}).meta({ id: "ChangedAgent" });

export const AgentQuery = Page.extend({ status: AgentStatus.optional() });
export const AgentList = z.object({ agents: z.array(Agent), total: z.int() });

export const AccessKey = z.string().regex(/^ak_live_[A-Za-z0-9]{32}$/, "ak_live_ followed by 32 letters or digits")
  .meta({ secret: true, examples: ["ak_live_0123456789abcdefghijABCDEFGHIJ01"] });

export const TokenRequest = z.object({ api_key: AccessKey });
export const Token = z.object({
  access_token: z.string(),
  token_type: z.literal("Bearer"),
  expires_at: Moment,
  agent: Agent.nullable(),
}).meta({ id: "Token" });

/** A key as a listing shows it: neither the key nor its hash. */
export const ApiKey = z.object({
  id: idOf("api_key"),
  prefix: z.string(),
  scopes: z.array(Scope),
  expires_at: Moment.nullable(),
  created_at: Moment,
  last_used_at: Moment.nullable(),
  revoked_at: Moment.nullable(),
}).meta({ id: "ApiKey" });
export type ApiKey = z.output<typeof ApiKey>;

export const MintedKey = ApiKey.omit({ last_used_at: true, revoked_at: true }).extend({
  key: AccessKey.describe("The key itself; shown this once"),
}).meta({ id: "MintedApiKey" });
export type MintedKey = z.output<typeof MintedKey>;

export const KeyMint = z.object({
  scopes: z.array(Scope).min(1).max(32).transform((list) => [...new Set(list)]),
  expires_at: Moment.nullable().default(null),
});
export const KeyList = z.object({ keys: z.array(ApiKey) });
export const KeyPath = AgentPath.extend({ key_id: idOf("api_key") });

export const EnrichmentDepth = z.enum(["none", "light", "full"]);
export const Interest = z.object({
  id: idOf("interest"),
  tenant_id: idOf("tenant"),
  agent_id: idOf("agent"),
  event_type: TypeGlob,
  filter_expression: FilterExpression,
  priority: z.int().min(0),
  enrichment_depth: EnrichmentDepth,
  active: z.boolean(),
  created_at: Moment,
  updated_at: Moment,
}).meta({ id: "Interest" });
export type Interest = z.output<typeof Interest>;

export const InterestCreate = z.object({
  event_type: TypeGlob,
  filter_expression: FilterExpression.default(null),
  priority: z.int().min(0).max(2_147_483_647).meta({ examples: [0] }),
  enrichment_depth: EnrichmentDepth,
});
export type InterestCreate = z.output<typeof InterestCreate>;
export const InterestList = z.object({ interests: z.array(Interest) });
export const InterestPath = AgentPath.extend({ interest_id: idOf("interest") });

export const Slug = z.string().regex(
  /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/,
  "1 to 63 lower-case letters, digits and inner hyphens",
).meta({ examples: ["acme"] });

export const Tenant = z.object({ id: idOf("tenant"), slug: Slug, name: Name, created_at: Moment });
export type Tenant = z.output<typeof Tenant>;
export const TenantCreate = z.object({ slug: Slug, name: Name.optional() });
export const TenantList = z.object({ tenants: z.array(Tenant) });
export const OrgAdminKey = z.object({ org_admin_id: idOf("org_admin"), key_id: idOf("api_key"), key: AccessKey });
export const TenantCreated = z.object({ tenant: Tenant, org_admin: OrgAdminKey });

/** A tenant as an operator names it: by id or by slug. */
export const TenantRef = z.object({ tenant: z.string().min(1).max(128) });
export const OrgAdminKeyRevoke = TenantRef.extend({ key_id: idOf("api_key") });
