create table registry.webhooks (
  id text primary key,
  tenant_id text not null references registry.tenants,
  source text not null,
  preset text not null,
  mapping jsonb,
  created_at timestamptz not null default now()
);
create index webhooks_by_tenant on registry.webhooks (tenant_id, id);

-- Sealed with a key derived from the server secret: a signature can only be checked by whoever knows the secret itself.
create table registry.webhook_secrets (
  id text primary key,
  webhook_id text not null references registry.webhooks on delete cascade,
  sealed bytea not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz
);
create index webhook_secrets_by_webhook on registry.webhook_secrets (webhook_id, id desc);

create table registry.connectors (
  id text primary key,
  tenant_id text not null references registry.tenants,
  source text not null,
  kind text not null,
  settings jsonb not null,
  secrets_sealed bytea not null,
  mapping jsonb,
  paused boolean not null,
  created_at timestamptz not null default now()
);
create index connectors_by_tenant on registry.connectors (tenant_id, id);
