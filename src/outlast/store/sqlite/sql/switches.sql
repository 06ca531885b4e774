-- pause, resume, list_pauses, read_audit: what people decide for everybody.
--
-- Lock order: the file's one writer lock; the views take none.

-- Read every switch that stands; there are few.
-- name: all_pauses
select tenant, scope
from pauses;

-- Read a switch.
-- name: read_pause
select reason, by_whom
from pauses
where tenant = :tenant and scope = :scope;

-- Throw a switch, or keep a new reason for it.
-- name: keep_pause
insert into pauses (tenant, scope, reason, by_whom, at)
values (:tenant, :scope, :reason, :by, :now)
on conflict (tenant, scope) do update set reason = excluded.reason, by_whom = excluded.by_whom, at = excluded.at;

-- Take a switch back.
-- name: drop_pause
delete from pauses
where tenant = :tenant and scope = :scope;

-- Read the switches of a tenant and those of everybody.
-- name: list_pauses
select tenant, scope, reason, by_whom, at
from pauses
where tenant in (:tenant, :every)
order by tenant, scope;

-- Append to the audit trail.
-- name: add_audit
insert into audit (tenant, at, who, what, subject, reason, data)
values (:tenant, :at, :who, :what, :subject, :reason, :data);

-- Read a tenant's audit trail above a number.
-- name: read_audit
select number, at, who, what, subject, reason, data
from audit
where tenant = :tenant and number > :after
order by number
limit :limit;
