-- pause, resume, list_pauses, read_audit: what people decide for everybody, and whom it holds back.
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

-- Keep a task by the switch that holds it back.
-- name: hold_task
insert into held_tasks (by_tenant, scope, tenant, task)
values (:by_tenant, :scope, :tenant, :task)
on conflict do nothing;

-- Read the next switch, by name, that has held tasks back.
-- name: next_held
select by_tenant, scope
from held_tasks
where (by_tenant, scope) > (:by_tenant, :scope)
order by by_tenant, scope
limit 1;

-- Read tasks that a switch has held back.
-- name: read_held
select by_tenant, scope, tenant, task
from held_tasks
where by_tenant = :by_tenant and scope = :scope
order by tenant, task
limit :limit;

-- Forget a task that was told.
-- name: drop_held
delete from held_tasks
where by_tenant = :by_tenant and scope = :scope and tenant = :tenant and task = :task;

-- Forget a task that is over.
-- name: release_task
delete from held_tasks
where tenant = :tenant and task = :task;

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
