-- retry, adopt, wake, accept, list_versions, read_acceptances: what becomes of tasks whose work or code is changed.
--
-- Lock order: the file's one writer lock; the views take none. What is fenced: nothing is written under a lease; heads
-- are read and written in one transaction.

-- Say whether anything of a task was undone, or may have been.
-- name: any_undone
select 1
from operations
where tenant = :tenant and task = :task and kind = 'compensation' and state in ('succeeded', 'unknown')
limit 1;

-- Read the lane that a task stands in.
-- name: read_lane
select lanes.pool, lanes.agent, lanes.version, lanes.tenant, lanes.priority
from tasks
join lanes on lanes.id = tasks.lane
where tasks.tenant = :tenant and tasks.id = :task;

-- Count the verdicts on a round's work; answer the one that stands, too.
-- name: last_acceptance
select number, verdict
from acceptances
where tenant = :tenant and task = :task and round = :round
order by number desc
limit 1;

-- Keep a verdict.
-- name: keep_acceptance
insert into acceptances (tenant, task, round, number, verdict, by_whom, reason, evidence, at)
values (:tenant, :task, :round, :number, :verdict, :by, :reason, :evidence, :now);

-- Read the verdicts on a task's work, the oldest first.
-- name: read_acceptances
select round, number, verdict, by_whom, reason, evidence, at
from acceptances
where tenant = :tenant and task = :task
order by round, number;

-- Count queued tasks by the version that they need; the queue comes first (cross join), since all of it lives.
-- name: count_queued
select lanes.agent, lanes.version, count(*)
from queue
cross join tasks on tasks.tenant = queue.tenant and tasks.id = queue.task
cross join lanes on lanes.id = queue.lane
where tasks.state = 'queued' and tasks.lane = queue.lane and (:tenant is null or queue.tenant = :tenant)
group by 1, 2;

-- Count running tasks by the version that they need.
-- name: count_running
select lanes.agent, lanes.version, count(*)
from leases
cross join tasks on tasks.tenant = leases.tenant and tasks.id = leases.task
cross join lanes on lanes.id = tasks.lane
where :tenant is null or leases.tenant = :tenant
group by 1, 2;

-- Count waiting tasks by the version that they need, by an index of those alone.
-- name: count_waiting
select lanes.agent, lanes.version, count(*)
from tasks indexed by tasks_waiting
cross join lanes on lanes.id = tasks.lane
where tasks.state = 'waiting' and (:tenant is null or tasks.tenant = :tenant)
group by 1, 2;

-- Read what the sessions that live say that they serve.
-- name: list_sessions
select id, name, serves, started_at, expires_at
from sessions
where lost_at is null and expires_at > :now
order by started_at, id;
