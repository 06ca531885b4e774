-- submit: input, head, queue entry or timer, first event and outbox row of each task, in one transaction.
--
-- Lock order: the file's one writer lock, taken by begin immediate (or by the caller's own transaction).

-- Claim the task's id and the tenant's key by one insert; no row changes when either is taken.
-- name: claim_key
insert into inputs (tenant, task, key, request_digest, agent, version_asked, pool, priority, input, user_name, trace,
    announce, submitted_at, parent, parent_key, detached, depth, budget)
values (:tenant, :task, :key, :request_digest, :agent, :version, :pool, :priority, :input, :user_name, :trace,
    :announce, :now, :parent, :parent_key, :detached, :depth, :budget)
on conflict do nothing;

-- Read the digest under which a task's id was used before.
-- name: read_digest
select request_digest
from inputs
where tenant = :tenant and task = :task;

-- Read who holds a key.
-- name: read_key_holder
select task, request_digest
from inputs
where tenant = :tenant and key = :key;

-- Read whether a task may have children, and how many parents it has.
-- name: read_parent
select tasks.state, tasks.epoch, tasks.cancelling, inputs.depth
from tasks
join inputs on inputs.tenant = tasks.tenant and inputs.task = tasks.id
where tasks.tenant = :tenant and tasks.id = :task;

-- Count the children of a task that runs.
-- name: count_children
update tasks
set children = children + :count
where tenant = :tenant and id = :task and epoch = :epoch and state = 'running';

-- Make the heads of new tasks.
-- name: make_heads
insert into tasks (tenant, id, state, reason, last_event, lane, deadline_at)
values (:tenant, :task, :state, :reason, 1, :lane, :deadline_at);
