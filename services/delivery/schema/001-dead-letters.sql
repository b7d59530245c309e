create schema if not exists delivery;

-- What was not acknowledged in any attempt, was rejected, or could not be fanned out. A replayed row stays for a while,
-- unseen, so that the same request tried again is answered as the first time.
create table delivery.dead_letters (
  delivery_id text primary key,
  tenant_id text not null,
  agent_id text,
  event_id text not null,
  event_type text not null,
  event_seq bigint not null,
  -- Place in the delivery stream: a later one is a later life of the same delivery.
  generation bigint not null,
  attempt_count integer not null,
  reason text not null,
  -- JSON, but handed back as it came and never looked into: text takes every string that JSON can write, jsonb does not.
  payload text,
  matched text not null,
  priority integer not null,
  enrichment text not null,
  created_at timestamptz not null,
  dead_lettered_at timestamptz not null default clock_timestamp(),
  replay_seed text,
  replay_claimed_at timestamptz,
  replayed_at timestamptz
);
create index dead_letters_by_tenant on delivery.dead_letters (tenant_id, dead_lettered_at desc, delivery_id desc)
  where replayed_at is null;
create index dead_letters_by_agent on delivery.dead_letters (tenant_id, agent_id, dead_lettered_at desc, delivery_id desc)
  where replayed_at is null;
create index dead_letters_replayed on delivery.dead_letters (replayed_at) where replayed_at is not null;
