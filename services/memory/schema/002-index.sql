-- Which index there is, and whether indexed_version speaks of it. Two models, or an index in the process and one apart,
-- have different ones, and what one was told the other was not.
alter table memory.recipe add column index_name text, add column is_told boolean not null default false;
