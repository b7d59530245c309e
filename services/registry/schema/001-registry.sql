create schema if not exists registry;

create table registry.tenants (
  id text primary key,
  slug text not null constraint tenants_slug unique,
  name text not null,
  created_at timestamptz not null default now()
);

create table registry.org_admins (
  id text primary key,
  tenant_id text not null references registry.tenants,
  created_at timestamptz not null default now()
);

create table registry.agents (
  id text primary key,
  tenant_id text not null references registry.tenants,
  name text not null,
  description text,
  status text not null default 'active' check (status in ('active', 'inactive')),
  delivery_mode text not null,
  delivery_endpoint text,
  client_type text not null,
  team_id text,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create index agents_by_tenant on registry.agents (tenant_id, id desc);

-- A key belongs to an agent or to an org-admin. Only its keyed hash is kept.
create table registry.api_keys (
  id text primary key,
  tenant_id text not null references registry.tenants,
  agent_id text references registry.agents,
  org_admin_id text references registry.org_admins,
  prefix text not null,
  hash bytea not null constraint api_keys_hash unique,
  scopes text[] not null,
  expires_at timestamptz,
  created_at timestamptz not null default now(),
  last_used_at timestamptz,
  revoked_at timestamptz,
  check ((agent_id is null) <> (org_admin_id is null))
);
create index api_keys_by_agent on registry.api_keys (tenant_id, agent_id, id desc);

create table registry.interests (
  id text primary key,
  tenant_id text not null references registry.tenants,
  agent_id text not null references registry.agents,
  event_type text not null,
  filter_expression text,
  priority integer not null,
  enrichment_depth text not null,
  active boolean not null default true,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create unique index interests_alike on registry.interests (agent_id, event_type, coalesce(filter_expression, ''));

create table registry.channels (
  id text primary key,
  tenant_id text not null references registry.tenants,
  name text not null,
  description text,
  type text not null,
  created_by_type text not null,
  created_by_id text not null,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create unique index channels_name on registry.channels (tenant_id, name);

create table registry.members (
  id text primary key,
  tenant_id text not null references registry.tenants,
  channel_id text not null references registry.channels,
  participant_type text not null,
  participant_id text not null,
  role text not null,
  joined_at timestamptz not null default now()
);
create unique index members_once on registry.members (channel_id, participant_type, participant_id);
create index members_by_participant on registry.members (tenant_id, participant_type, participant_id);

create table registry.feeds (
  id text primary key,
  tenant_id text not null references registry.tenants,
  channel_id text not null references registry.channels,
  event_type_glob text not null,
  filter_expression text,
  active boolean not null default true,
  created_at timestamptz not null default now()
);
create index feeds_by_channel on registry.feeds (channel_id, id);

-- The private half is sealed with a key derived from the server secret.
create table registry.signing_keys (
  kid text primary key,
  public_jwk jsonb not null,
  private_sealed bytea not null,
  created_at timestamptz not null default now(),
  retired_at timestamptz
);

-- What a committed change still has to announce. Empty but for the moments between a commit and its announcement.
create table registry.outbox (
  version bigserial primary key,
  bucket text not null,
  key text not null,
  value jsonb,
  ttl_seconds integer,
  created_at timestamptz not null default now()
);
