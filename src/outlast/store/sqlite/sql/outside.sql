-- flush, post_outside, read_outside: conversations and runs at providers.
--
-- Lock order: the file's one writer lock; the view takes none. What is fenced: a session is attached by flush, under
-- its task's head and epoch; events from outside need no lease.

-- Read which task holds an outside session, and whether that lives.
-- name: read_holder
select outside.task, tasks.state in ('queued', 'running', 'waiting')
from outside
join tasks on tasks.tenant = outside.tenant and tasks.id = outside.task
where outside.tenant = :tenant and outside.provider = :provider and outside.session = :session
    and outside.run = :run;

-- Hold an outside session that no other live task holds; what the last holder heard of it is not this one's.
-- name: attach
insert into outside (tenant, provider, session, run, task, epoch, attached_at)
values (:tenant, :provider, :session, :run, :task, :epoch, :now)
on conflict (tenant, provider, session, run) do update
set task = excluded.task, epoch = excluded.epoch, attached_at = excluded.attached_at, last_event = null,
    last_event_at = null
where outside.task <> excluded.task;

-- Find the task that an event belongs to: the holder of the run, else that of the session as a whole.
-- name: find_outside
select task, run
from outside
where tenant = :tenant and provider = :provider and session = :session and run in (:run, '')
order by run desc
limit 1;

-- Keep the last event that reached the holder of an outside session.
-- name: keep_outside_event
update outside
set last_event = :event, last_event_at = :now
where tenant = :tenant and provider = :provider and session = :session and run = :run;

-- Read the outside sessions that a task holds.
-- name: read_outside
select provider, session, run, attached_at, last_event, last_event_at
from outside
where tenant = :tenant and task = :task
order by provider, session, run;
