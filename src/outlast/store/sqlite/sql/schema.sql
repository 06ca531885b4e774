-- migrate, open: which migrations were applied.
--
-- Lock order: the file's one writer lock for migrate; open takes none.

-- Make the table of migrations, if it is not there.
-- name: make_migrations
create table if not exists migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at integer not null
) strict;

-- Say whether the table of migrations is there.
-- name: has_migrations
select 1
from sqlite_schema
where type = 'table' and name = 'migrations';

-- Read what was applied.
-- name: read_migrations
select number, checksum
from migrations
order by number;

-- Read the newest migration applied.
-- name: read_version
select max(number)
from migrations;

-- Keep that a migration was applied.
-- name: keep_migration
insert into migrations (number, name, checksum, applied_at)
values (:number, :name, :checksum, :applied_at);
