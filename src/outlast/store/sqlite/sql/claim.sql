-- renew, retire, claim, reconcile, load: sessions, leases, and what a claimed task is loaded with.
--
-- Lock order: the file's one writer lock; load takes none.

-- Open or renew a session; a session that was swept is left as it is.
-- name: renew_session
insert into sessions (id, name, serves, started_at, expires_at)
values (:session, :name, :serves, :now, :expires_at)
on conflict (id) do update
set name = excluded.name, serves = excluded.serves, expires_at = excluded.expires_at
where sessions.lost_at is null;

-- Refuse the claims of a session that ask with a lower fence.
-- name: raise_fence
update sessions
set fence = :fence
where id = :session and fence < :fence and lost_at is null;

-- Read a session.
-- name: read_session
select name, expires_at, lost_at, fence
from sessions
where id = :session;

-- End a session that holds no lease.
-- name: end_session
delete from sessions
where id = :session and not exists (select 1 from leases where leases.session = :session);

-- Remove the writer rows of a session: its own id, or that and a slash and more.
-- name: drop_writers
delete from writers
where id = :session or (id >= :session || '/' and id < :session || '0');

-- Read the leases of a session.
-- name: session_leases
select tenant, task, epoch
from leases
where session = :session
order by tenant, task;

-- Read every lane that holds something, hopping from lane to lane: the cost is that of the lanes, not of the
-- backlog.
-- name: busy_lanes
with recursive busy (lane) as (
    select min(lane) from queue
    union all
    select (select min(queue.lane) from queue where queue.lane > busy.lane) from busy where busy.lane is not null
)
select lanes.id, lanes.pool, lanes.agent, lanes.version, lanes.tenant, lanes.priority, lanes.weight, lanes.served,
    (select min(seq) from queue where queue.lane = lanes.id)
from busy
join lanes on lanes.id = busy.lane;

-- Read the places that a tenant has in the taking of turns, of all its lanes.
-- name: tenant_lanes
select pool, agent, version, served
from lanes
where tenant = :tenant;

-- Read the oldest entries of a lane after a place, each with the head that it stands for, if it still does: a stale
-- entry claims nothing.
-- name: read_entries
select seq, queue.task, epoch, round, facts, last_event, deadline_at, undoing
from queue
left join tasks on tasks.tenant = queue.tenant and tasks.id = queue.task
    and tasks.state = 'queued' and tasks.lane = queue.lane
where queue.lane = :lane and seq > :after
order by seq
limit :limit;

-- Take queue entries away.
-- name: drop_entries
delete from queue
where lane = :lane and seq = :seq;

-- Claim tasks, each guarded by the state and the lane that were read.
-- name: claim_heads
update tasks
set state = 'running', epoch = epoch + 1, last_event = last_event + 1, lane = :to
where tenant = :tenant and id = :task and lane = :lane and state = 'queued';

-- Write leases.
-- name: make_leases
insert into leases (tenant, task, epoch, round, session, version, config, started_at)
values (:tenant, :task, :epoch, :round, :session, :version, :config, :now);

-- Remember whose turn it was.
-- name: mark_served
update lanes
set served = :served
where id = :lane;

-- Say whether any task has asked people anything, so that those who have not pay for one look a transaction.
-- name: any_asked
select 1
from approvals
limit 1;

-- Read claimed tasks' inputs, count their ended attempts, and say whether they have a journal and whether something lies
-- before them; and which of those asked for each is. Of one with more bytes of text than a bound nothing is read.
-- name: load_inputs
select json_group_array(json_array(asked.key, input, user_name, trace, submitted_at,
    (select count(*) from attempts
     where attempts.tenant = inputs.tenant and attempts.task = inputs.task and attempts.round = asked.value ->> 2
         and attempts."end" = 'failed'),
    (select count(*) from attempts where attempts.tenant = inputs.tenant and attempts.task = inputs.task),
    budget, depth, forked_from is not null,
    exists (select 1 from operations where operations.tenant = inputs.tenant and operations.task = inputs.task),
    exists (select 1 from inbox
        where inbox.tenant = inputs.tenant and inbox.task = inputs.task and inbox.taken_by is null)))
from jsonb_each(:names) as asked
cross join inputs on inputs.tenant = asked.value ->> 0 and inputs.task = asked.value ->> 1
where asked.value ->> 3 is null
    or octet_length(input) + coalesce(octet_length(user_name), 0) + coalesce(octet_length(trace), 0)
        + coalesce(octet_length(budget), 0) <= asked.value ->> 3;

-- Read a task's journal; the few rows of one task are put in order by who asked.
-- name: load_operations
select tenant, task, key, position, kind, name, state, request, decision, effect, attempt, turn, epoch, arguments,
    result, error, created_at, intent_at, first_intent_at, deadline_at, due_at, ended_at, settled_by, business_key,
    idempotency_key, usage, visible_at
from operations
where tenant = :tenant and task = :task;
