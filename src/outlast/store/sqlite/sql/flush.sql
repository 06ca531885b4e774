-- flush: entries of many tasks under one fencing check each, numbered by their writer.
--
-- Lock order: the file's one writer lock. Then the writer's row, the heads in the batch's order, the rest.
-- What is fenced: what read_heads answers is compared with the task's epoch and state before any entry of it is written.

-- Read the last batch of a writer.
-- name: read_writer
select number, verdicts
from writers
where id = :writer;

-- Keep a batch's number and verdicts in the batch itself.
-- name: keep_writer
insert into writers (id, number, verdicts, updated_at)
values (:writer, :number, :verdicts, :now)
on conflict (id) do update
set number = excluded.number, verdicts = excluded.verdicts, updated_at = excluded.updated_at;

-- Count heads' events on, each fenced by its epoch.
-- name: count_events
update tasks
set last_event = :last_event
where tenant = :tenant and id = :task and epoch = :epoch and state = 'running';

-- Record operations that are not there yet; nothing changes of those that are.
-- name: record_operations
insert into operations (tenant, task, key, position, kind, name, state, request, epoch, arguments, result, error,
    created_at, due_at, ended_at, lost)
values (:tenant, :task, :key, :position, :kind, :name, :state, :request, :epoch, :arguments, :result, :error,
    :now, :due_at, :ended_at, :lost)
on conflict do nothing;

-- Read what a compare-and-set of an operation compares with.
-- name: read_operation
select state, attempt, turn, deadline_at, visible_at
from operations
where tenant = :tenant and task = :task and key = :key;

-- Replace the record of an operation of which nothing was sent: what was sent ends by an outcome.
-- name: replace_operation
update operations
set kind = :kind, name = :name, state = :state, request = :request, epoch = :epoch, arguments = :arguments,
    result = :result, error = :error, due_at = :due_at, ended_at = :ended_at, settled_by = null,
    lost = :lost
where tenant = :tenant and task = :task and key = :key
    and (state in ('planned', 'approved') or (state = 'running' and attempt = 0));

-- Commit the intent of an operation that was not on record.
-- name: commit_first_intent
insert into operations (tenant, task, key, position, kind, name, state, request, decision, effect, attempt, turn,
    epoch, arguments, created_at, intent_at, first_intent_at, deadline_at, visible_at,
    business_key, business_rule)
values (:tenant, :task, :key, :position, :kind, :name, 'running', :request, :decision, :effect, 1, 1,
    :epoch, :arguments, :now, :now, :now, :deadline_at, :visible_at, :business_key, :business_rule)
on conflict do nothing;

-- Commit an intent by compare-and-set on attempt, turn and state.
-- name: commit_intent
update operations
set kind = :kind, name = :name, state = 'running', request = :request, decision = :decision, effect = :effect,
    attempt = attempt + 1, turn = turn + 1, epoch = :epoch, arguments = :arguments, result = null, error = null,
    intent_at = :now, first_intent_at = coalesce(first_intent_at, :now), deadline_at = :deadline_at,
    visible_at = :visible_at, ended_at = null, settled_by = null, business_key = :business_key,
    business_rule = :business_rule
where tenant = :tenant and task = :task and key = :key and attempt = :attempt and turn = :turn
    and state in (:planned, :approved);

-- Say whether any provider has asked everybody to wait.
-- name: any_waits
select 1
from provider_waits
where until_at > :now
limit 1;

-- Read how long a provider asked everybody to wait.
-- name: read_wait
select until_at
from provider_waits
where tenant = :tenant and provider = :provider;

-- Keep that a provider asked everybody to wait; the longer of that and what stands.
-- name: keep_wait
insert into provider_waits (tenant, provider, until_at)
values (:tenant, :provider, :until_at)
on conflict (tenant, provider) do update set until_at = max(until_at, excluded.until_at);

-- Record an outcome by compare-and-set on attempt, turn and state; that it is to be sent again, only of a call under
-- way.
-- name: record_outcome
update operations
set state = :state, result = :result, error = :error, turn = turn + 1, ended_at = :ended_at, settled_by = :settled_by,
    usage = coalesce(:usage, usage)
where tenant = :tenant and task = :task and key = :key and attempt = :attempt and turn = :turn
    and (state = 'running' or (state = 'unknown' and :state <> 'planned'));

-- Take an operation's next turn by compare-and-set; from now on its outcome is unknown until evidence is
-- there.
-- name: take_turn
update operations
set state = 'unknown', turn = turn + 1
where tenant = :tenant and task = :task and key = :key and attempt = :attempt and turn = :turn
    and state in ('running', 'unknown');

-- Open a failed operation again.
-- name: reopen_operation
update operations
set state = 'planned', result = null, error = null, ended_at = null, settled_by = null, lost = 0
where tenant = :tenant and task = :task and key = :key and state = 'failed';
