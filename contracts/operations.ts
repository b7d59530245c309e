/**
 * The table of operations: the one place that says which requests exist, who answers them, who may ask, and in what
 * shape. Routes, scope checks, subjects, validation, handler types, OpenAPI and the client are derived from it.
 */
import { z } from "zod";
import * as channels from "./channels.ts";
import type { ErrorCode } from "./errors.ts";
import type { Caller, Scope } from "./identity.ts";
import * as registry from "./registry.ts";

export const services = ["registry"] as const;
export type ServiceName = (typeof services)[number];

export type Method = "GET" | "POST" | "PATCH" | "DELETE";

/**
 * Who may ask: anyone, whoever holds the bus, any valid token, a scope, or one thing for the agent named by `{id}`
 * itself and another for everybody else.
 */
export type Access = "public" | "operator" | "token" | Scope | {
  readonly self: Scope | "token";
  readonly other: Scope;
};

export interface Operation {
  readonly service: ServiceName;
  readonly summary: string;
  /** Absent: reachable over the bus alone, for operators. */
  readonly http?: readonly [Method, string];
  readonly access: Access;
  readonly path?: z.ZodObject;
  readonly query?: z.ZodObject;
  readonly body?: z.ZodType;
  /** Absent: the answer has no body. */
  readonly output?: z.ZodType;
  readonly success: 200 | 201 | 202 | 204;
  /** Beyond what every operation of its shape can answer; see `faultsOf`. */
  readonly faults?: readonly ErrorCode[];
  /** The answer carries a secret shown once, so a kept copy of it is sealed. */
  readonly secret?: true;
  readonly deadlineMs?: number;
  readonly maxBodyBytes?: number;
}

const Status = <S extends string>(status: S) => z.object({ status: z.literal(status) });

export const operations = {
  "auth.token": {
    service: "registry",
    summary: "Exchange an API key for a one-hour access token",
    http: ["POST", "/auth/token"],
    access: "public",
    body: registry.TokenRequest,
    output: registry.Token,
    success: 200,
    faults: ["authentication_failed", "rate_limited"],
    secret: true,
    maxBodyBytes: 4096,
  },

  "agents.register": {
    service: "registry",
    summary: "Register an agent",
    http: ["POST", "/agents"],
    access: "admin",
    body: registry.AgentRegistration,
    output: registry.Agent,
    success: 201,
  },
  "agents.list": {
    service: "registry",
    summary: "List the tenant's agents, newest first",
    http: ["GET", "/agents"],
    access: "token",
    query: registry.AgentQuery,
    output: registry.AgentList,
    success: 200,
  },
  "agents.get": {
    service: "registry",
    summary: "Get an agent",
    http: ["GET", "/agents/{id}"],
    access: "token",
    path: registry.AgentPath,
    output: registry.Agent,
    success: 200,
  },
  "agents.update": {
    service: "registry",
    summary: "Change an agent's name, description or way of delivery",
    http: ["PATCH", "/agents/{id}"],
    access: { self: "token", other: "admin" },
    path: registry.AgentPath,
    body: registry.AgentChange,
    output: registry.Agent,
    success: 200,
  },
  "agents.deactivate": {
    service: "registry",
    summary: "Deactivate an agent: its tokens stop working and it gets no new deliveries",
    http: ["POST", "/agents/{id}/deactivate"],
    access: "admin",
    path: registry.AgentPath,
    output: Status("inactive"),
    success: 200,
  },
  "agents.activate": {
    service: "registry",
    summary: "Activate an agent again",
    http: ["POST", "/agents/{id}/activate"],
    access: "admin",
    path: registry.AgentPath,
    output: Status("active"),
    success: 200,
  },

  "keys.list": {
    service: "registry",
    summary: "List an agent's API keys",
    http: ["GET", "/agents/{id}/keys"],
    access: "admin",
    path: registry.AgentPath,
    output: registry.KeyList,
    success: 200,
  },
  "keys.mint": {
    service: "registry",
    summary: "Mint an API key for an agent; the plaintext is in this answer alone",
    http: ["POST", "/agents/{id}/keys"],
    access: "admin",
    path: registry.AgentPath,
    body: registry.KeyMint,
    output: registry.MintedKey,
    success: 201,
    secret: true,
  },
  "keys.revoke": {
    service: "registry",
    summary: "Revoke an API key and every token issued from it",
    http: ["DELETE", "/agents/{id}/keys/{key_id}"],
    access: "admin",
    path: registry.KeyPath,
    success: 204,
  },

  "interests.list": {
    service: "registry",
    summary: "List an agent's interests",
    http: ["GET", "/agents/{id}/interests"],
    access: "interests:read",
    path: registry.AgentPath,
    output: registry.InterestList,
    success: 200,
    faults: ["business_rule_violation"],
  },
  "interests.create": {
    service: "registry",
    summary: "Register an interest of the calling agent",
    http: ["POST", "/agents/{id}/interests"],
    access: "interests:write",
    path: registry.AgentPath,
    body: registry.InterestCreate,
    output: registry.Interest,
    success: 201,
    faults: ["business_rule_violation"],
  },
  "interests.delete": {
    service: "registry",
    summary: "Delete an interest",
    http: ["DELETE", "/agents/{id}/interests/{interest_id}"],
    access: "interests:write",
    path: registry.InterestPath,
    success: 204,
    faults: ["business_rule_violation"],
  },

  "channels.list": {
    service: "registry",
    summary: "List the channels the caller may see, newest first",
    http: ["GET", "/channels"],
    access: "channel:read",
    query: channels.ChannelQuery,
    output: channels.ChannelList,
    success: 200,
  },
  "channels.create": {
    service: "registry",
    summary: "Create a channel; its creator becomes its owner",
    http: ["POST", "/channels"],
    access: "channel:write",
    body: channels.ChannelCreate,
    output: channels.Channel,
    success: 201,
  },
  "channels.get": {
    service: "registry",
    summary: "Get a channel",
    http: ["GET", "/channels/{id}"],
    access: "channel:read",
    path: channels.ChannelPath,
    output: channels.Channel,
    success: 200,
  },
  "members.list": {
    service: "registry",
    summary: "List a channel's members",
    http: ["GET", "/channels/{id}/members"],
    access: "channel:read",
    path: channels.ChannelPath,
    output: channels.MemberList,
    success: 200,
  },
  "members.add": {
    service: "registry",
    summary: "Add a member to a channel",
    http: ["POST", "/channels/{id}/members"],
    access: "channel:write",
    path: channels.ChannelPath,
    body: channels.MemberAdd,
    output: channels.Member,
    success: 201,
    faults: ["business_rule_violation"],
  },
  "members.remove": {
    service: "registry",
    summary: "Remove a member from a channel",
    http: ["DELETE", "/channels/{id}/members/{participant_type}/{participant_id}"],
    access: "channel:write",
    path: channels.MemberPath,
    success: 204,
    faults: ["business_rule_violation"],
  },
  "feeds.list": {
    service: "registry",
    summary: "List a channel's feeds",
    http: ["GET", "/channels/{id}/feeds"],
    access: "channel:read",
    path: channels.ChannelPath,
    output: channels.FeedList,
    success: 200,
  },
  "feeds.create": {
    service: "registry",
    summary: "Feed a channel with every matching event",
    http: ["POST", "/channels/{id}/feeds"],
    access: "channel:write",
    path: channels.ChannelPath,
    body: channels.FeedCreate,
    output: channels.Feed,
    success: 201,
    faults: ["business_rule_violation"],
  },
  "feeds.delete": {
    service: "registry",
    summary: "Delete a feed",
    http: ["DELETE", "/channels/{id}/feeds/{feed_id}"],
    access: "channel:write",
    path: channels.FeedPath,
    success: 204,
    faults: ["business_rule_violation"],
  },

  "operator.tenant_create": {
    service: "registry",
    summary: "Create a tenant with its first org-admin key",
    access: "operator",
    body: registry.TenantCreate,
    output: registry.TenantCreated,
    success: 201,
    secret: true,
  },
  "operator.tenant_list": {
    service: "registry",
    summary: "List all tenants",
    access: "operator",
    output: registry.TenantList,
    success: 200,
  },
  "operator.admin_key_mint": {
    service: "registry",
    summary: "Mint a further org-admin key for a tenant",
    access: "operator",
    body: registry.TenantRef,
    output: registry.OrgAdminKey,
    success: 201,
    secret: true,
  },
  "operator.admin_key_revoke": {
    service: "registry",
    summary: "Revoke an org-admin key and every token issued from it",
    access: "operator",
    body: registry.OrgAdminKeyRevoke,
    success: 204,
  },
  "operator.signing_key_rotate": {
    service: "registry",
    summary: "Sign tokens with a new key from now on; tokens of the old one live out their hour",
    access: "operator",
    output: z.object({ kid: z.string() }),
    success: 200,
  },
} as const satisfies Record<string, Operation>;

export type OperationName = keyof typeof operations;
export const operationNames = Object.keys(operations) as OperationName[];
export const operationOf = (name: OperationName): Operation => operations[name];

type Part<O, P extends "path" | "query" | "body"> = O extends { readonly [K in P]: infer S extends z.ZodType }
  ? z.output<S>
  : Record<never, never>;
type SentPart<O, P extends "path" | "query" | "body"> = O extends { readonly [K in P]: infer S extends z.ZodType }
  ? z.input<S>
  : Record<never, never>;
type Row<N extends OperationName> = (typeof operations)[N];

/** A request as its handler receives it, read and checked. */
export type Input<N extends OperationName> = {
  path: Part<Row<N>, "path">;
  query: Part<Row<N>, "query">;
  body: Part<Row<N>, "body">;
};
/** A request as a client writes it: what has a default may be left out. */
export type Sent<N extends OperationName> =
  & {
    [P in "path" | "query" | "body" as Record<never, never> extends SentPart<Row<N>, P> ? never : P]: SentPart<
      Row<N>,
      P
    >;
  }
  & {
    [P in "path" | "query" | "body" as Record<never, never> extends SentPart<Row<N>, P> ? P : never]?: SentPart<
      Row<N>,
      P
    >;
  };
export type Output<N extends OperationName> = Row<N> extends { readonly output: infer S extends z.ZodType }
  ? z.output<S>
  : void;

export type NamesOf<S extends ServiceName> = {
  [N in OperationName]: Row<N>["service"] extends S ? N : never;
}[OperationName];

/** What every handler is told about the request beside its input. */
export interface Call<C extends Caller = Caller> {
  readonly caller: C;
  readonly requestId: string;
  /**
   * Chosen once per request and the same when the request is tried again under its Idempotency-Key: what a handler
   * creates is named by it, so a second run meets what the first one left.
   */
  readonly seed: string;
  readonly signal: AbortSignal;
}

/** The caller an operation is promised: the gateway has let nobody else through. */
export type CallerOf<N extends OperationName> = Row<N>["access"] extends "public"
  ? Extract<Caller, { kind: "anonymous" }>
  : Row<N>["access"] extends "operator" ? Extract<Caller, { kind: "operator" }>
  : Extract<Caller, { kind: "agent" | "org_admin" }>;

/** What a service must answer. A new row in the table stops its service from compiling until it does. */
export type Handlers<S extends ServiceName> = {
  [N in NamesOf<S>]: (input: Input<N>, call: Call<CallerOf<N>>) => Promise<Output<N>>;
};

export const deadlineOf = (operation: Operation): number => operation.deadlineMs ?? 5_000;
export const maxBodyOf = (operation: Operation): number => operation.maxBodyBytes ?? 256 * 1024;
export const isKeyed = (operation: Operation): boolean =>
  operation.access !== "public" && (operation.http?.[0] === "POST" || operation.http?.[0] === "PATCH");

/** Every code an operation may answer with: what its shape implies, and what its row adds. */
export function faultsOf(operation: Operation): ErrorCode[] {
  const codes = new Set<ErrorCode>(["internal_error", "service_unavailable"]);
  if (operation.access !== "public") codes.add("authentication_failed").add("rate_limited");
  if (operation.access !== "public" && operation.access !== "token") codes.add("insufficient_scope");
  if (operation.path || operation.query || operation.body) codes.add("validation_failed");
  if (operation.path) codes.add("not_found");
  if (operation.body) codes.add("payload_too_large");
  if (isKeyed(operation)) codes.add("conflict");
  for (const code of operation.faults ?? []) codes.add(code);
  return [...codes];
}
