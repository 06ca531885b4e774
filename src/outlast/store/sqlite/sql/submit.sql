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

-- Read how many parents a task has.
-- name: read_depth
select depth
from inputs
where tenant = :tenant and task = :task;

-- Put a child on the record of its parent.
-- name: begin_child
insert into operations (tenant, task, key, position, kind, name, state, request, epoch, arguments, created_at)
values (:tenant, :task, :key, :position, 'child', :name, 'running', :request, :epoch, :arguments, :now)
on conflict do nothing;

-- Count the children of a task that runs, and its events on.
-- name: count_children
update tasks
set children = :children, last_event = :last_event
where tenant = :tenant and id = :task and epoch = :epoch and state = 'running';

-- Make the heads of new tasks.
-- name: make_heads
insert into tasks (tenant, id, state, reason, last_event, lane, deadline_at)
values (:tenant, :task, :state, :reason, 1, :lane, :deadline_at);
