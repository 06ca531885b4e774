-- sweep: sessions that ran out, timers that are due, deadlines that passed.
--
-- Lock order: the file's one writer lock; whoever judges by time has it before the clock is read.
-- What is fenced: heads are read and written in one transaction; taking a task away raises its epoch.

-- Read sessions that ran out, the longest ago first.
-- name: expired_sessions
select id
from sessions
where lost_at is null and expires_at <= :now
order by expires_at, id
limit :limit;

-- Mark a session as lost, for good.
-- name: lose_session
update sessions
set lost_at = :now
where id = :session and lost_at is null;

-- Read leases whose session is lost; sessions come first (cross join), since lost ones are few and leases many.
-- name: lost_leases
select leases.tenant, leases.task, leases.session
from sessions
cross join leases on leases.session = sessions.id
where sessions.lost_at is not null
limit :limit;

-- Read how the last attempts of a round ended, the newest first.
-- name: last_ends
select "end"
from attempts
where tenant = :tenant and task = :task and round = :round
order by epoch desc
limit :limit;

-- Read tasks whose deadline has passed; one that runs is left to its worker for the grace time.
-- name: due_deadlines
select timers.tenant, timers.task
from timers
join tasks on tasks.tenant = timers.tenant and tasks.id = timers.task
where timers.kind = 'deadline' and timers.due_at <= :now
    and (tasks.state <> 'running' or timers.due_at <= :now - :grace)
order by timers.due_at
limit :limit;

-- Read tasks whose wake timer is due.
-- name: due_wakes
select tenant, task
from timers
where kind = 'wake' and due_at <= :now
order by due_at
limit :limit;

-- Read whether a sweep finds anything to do, and when the next timer is due; a deadline that has passed waits
-- out its grace while the task runs, and counts again at the end of it.
-- name: next_due
select
    exists (select 1 from sessions where lost_at is null and expires_at <= :now)
    or exists (select 1 from sessions cross join leases on leases.session = sessions.id
               where sessions.lost_at is not null)
    or exists (select 1 from timers
               join tasks on tasks.tenant = timers.tenant and tasks.id = timers.task
               where timers.kind = 'deadline' and timers.due_at <= :now
                   and (tasks.state <> 'running' or timers.due_at <= :now - :grace))
    or exists (select 1 from timers where kind = 'wake' and due_at <= :now)
    or exists (select 1 from provider_waits where until_at <= :now),
    min(
        coalesce((select min(due_at) from timers where due_at > :now), 9223372036854775807),
        coalesce((select min(case kind when 'deadline' then due_at + :grace else due_at end)
                  from timers where due_at <= :now), 9223372036854775807)
    );

-- Forget what providers asked for once it is over.
-- name: drop_waits
delete from provider_waits
where until_at <= :now;
