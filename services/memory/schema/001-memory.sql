create schema if not exists memory;

-- A memory, and beside it what an index needs of it. The row is the only truth: an index can always be made from it.
create table memory.memories (
  id text primary key,
  tenant_id text not null,
  agent_id text not null,
  team_id text,
  project_id text,
  type text not null,
  scope text not null check (scope in ('agent', 'team', 'institutional')),
  status text not null default 'active' check (status in ('active', 'deleted', 'expired')),
  title text not null,
  content text not null,
  confidence double precision not null,
  importance double precision not null,
  metadata jsonb not null,
  source_type text,
  source_id text,
  source_url text,
  source_event_id text,
  freshness_date timestamptz,
  expires_at timestamptz,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  accessed_at timestamptz not null default now(),
  -- About how much an answer with this memory weighs, so that a page never outgrows a message.
  size_bytes integer not null,
  -- The request that last promoted it: the same request tried again is no second promotion.
  promoted_by text,

  -- The meaning, as 16-bit floats, and the model that computed it; null while no embedder has answered.
  dense bytea,
  model text,
  -- The words: pairs of a 32-bit hash and a weight.
  sparse bytea not null,
  -- By what recipe (model, reading of words, generation) both were computed. Another one than today's: to be done anew.
  recipe text not null,
  -- Grows with every change an index must know of; what is above indexed_version is an index service's outbox.
  version bigint not null default 1,
  indexed_version bigint not null default 0,
  -- The transaction of the last such change. With a snapshot it tells exactly what a replica has not seen yet.
  changed_xid xid8 not null default pg_current_xact_id(),
  check (scope <> 'team' or team_id is not null)
) with (fillfactor = 90);

create index memories_newest on memory.memories (tenant_id, id desc) where status = 'active';
create index memories_changed on memory.memories (tenant_id, changed_xid);
create index memories_by_event on memory.memories (tenant_id, source_event_id)
  where source_event_id is not null and status = 'active';
create index memories_expiring on memory.memories (expires_at) where status = 'active' and expires_at is not null;
create index memories_by_recipe on memory.memories (recipe) where status = 'active';
create index memories_behind on memory.memories (tenant_id, id) where indexed_version < version;

create table memory.relationships (
  id text primary key,
  tenant_id text not null,
  source_memory_id text not null references memory.memories,
  target_memory_id text not null references memory.memories,
  relationship_type text not null,
  strength double precision not null,
  metadata jsonb,
  created_by text not null,
  created_at timestamptz not null default now()
);
create unique index relationships_once
  on memory.relationships (source_memory_id, target_memory_id, relationship_type);
create index relationships_by_target on memory.relationships (target_memory_id);

-- One row: the recipe by which words and vectors are to be computed, and how often a reindex was asked for.
create table memory.recipe (
  single boolean primary key default true check (single),
  model text not null,
  lexicon integer not null,
  generation integer not null default 0
);
