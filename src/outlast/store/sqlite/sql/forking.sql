-- fork, flush, load: journals that begin with a prefix of another's.
--
-- Lock order: the file's one writer lock; load takes none. What is fenced: a call is taken over by flush, under the
-- fork's own head and epoch.

-- Read which task a fork was made from.
-- name: read_fork
select forked_from
from inputs
where tenant = :tenant and task = :task;

-- Read the place of an operation in its journal.
-- name: read_position
select position
from operations
where tenant = :tenant and task = :task and key = :key;

-- Read which operations before a place a fork cannot begin with: those that have not ended, and those whose effects
-- were undone, or may have been.
-- name: unsettled_prefix
select operations.key
from operations
where tenant = :tenant and task = :task and (:before is null or position < :before)
    and (
        state not in ('succeeded', 'failed')
        or exists (
            select 1
            from operations as undo
            where undo.tenant = :tenant and undo.task = :task and undo.key = operations.key || '/undo'
                and undo.kind = 'compensation' and undo.state in ('succeeded', 'unknown')
        )
    )
order by position, key;

-- Copy what a task was asked for, under the key of the fork.
-- name: fork_input
insert into inputs (tenant, task, key, request_digest, agent, version_asked, pool, priority, input, user_name, announce,
    submitted_at, depth, budget, forked_from)
select tenant, :new, :key, :digest, agent, :version, pool, priority, coalesce(:input, input), user_name, announce,
    :now, depth, budget, :task
from inputs
where tenant = :tenant and task = :task
returning announce;

-- Copy the operations before a place, under the keys that were sent; but for those that were cut since another branch was
-- first, where the fork may go another way: which branch is first is recorded behind them, and the fork races again.
-- name: fork_operations
insert into operations (tenant, task, key, position, kind, name, state, request, decision, effect, attempt, turn,
    epoch, arguments, result, error, created_at, intent_at, first_intent_at, deadline_at, visible_at, due_at,
    ended_at, settled_by, lost, business_key, business_rule, idempotency_key, usage)
select tenant, :new, key, position, kind, name, state, request, decision, effect, attempt, turn,
    0, arguments, result, error, created_at, intent_at, first_intent_at, deadline_at, visible_at, due_at,
    ended_at, settled_by, lost, business_key, business_rule,
    coalesce(idempotency_key, case when attempt > 0 then task || ':' || key end), usage
from operations
where tenant = :tenant and task = :task
    and (:before is null or (position < :before and not lost));

-- Keep the calls that were made at a place or behind it, but for those whose effects are gone.
-- name: fork_issued
insert into issued (tenant, task, key, kind, name, state, request, decision, effect, attempt, turn, arguments,
    idempotency_key, first_intent_at, intent_at, deadline_at, visible_at)
select tenant, :new, key, kind, name, state, request, decision, effect, attempt, turn, arguments,
    coalesce(idempotency_key, task || ':' || key), first_intent_at, intent_at, deadline_at, visible_at
from operations
where tenant = :tenant and task = :task and position >= :before and kind in ('tool', 'model', 'compensation')
    and attempt > 0
    and not exists (
        select 1
        from operations as undo
        where undo.tenant = :tenant and undo.task = :task and undo.key = operations.key || '/undo'
            and undo.kind = 'compensation' and undo.state = 'succeeded'
    );

-- Keep the calls that a fork has not taken over for a fork of it.
-- name: fork_issued_again
insert into issued (tenant, task, key, kind, name, state, request, decision, effect, attempt, turn, arguments,
    idempotency_key, first_intent_at, intent_at, deadline_at, visible_at)
select tenant, :new, key, kind, name, state, request, decision, effect, attempt, turn, arguments,
    idempotency_key, first_intent_at, intent_at, deadline_at, visible_at
from issued
where tenant = :tenant and task = :task
    and not exists (
        select 1
        from operations
        where operations.tenant = :tenant and operations.task = :task and operations.key = issued.key
    );

-- Take a call over as unknown, under its own key and with its next turn; nothing where the ledger has it.
-- name: adopt_issued
insert into operations (tenant, task, key, position, kind, name, state, request, decision, effect, attempt, turn,
    epoch, arguments, created_at, intent_at, first_intent_at, deadline_at, visible_at, idempotency_key)
select tenant, task, key, :position, kind, name, 'unknown', request, decision, effect, attempt, turn + 1,
    :epoch, arguments, :now, intent_at, first_intent_at, deadline_at, visible_at, idempotency_key
from issued
where tenant = :tenant and task = :task and key = :key
on conflict do nothing;

-- Read how a call stood when the fork was made.
-- name: issued_state
select state
from issued
where tenant = :tenant and task = :task and key = :key;

-- Read the calls that the task which a fork was made from has made behind the fork.
-- name: read_issued
select tenant, task, key, 0, kind, name, state, request, decision, effect, attempt, turn, 0, arguments, null, null, 0,
    intent_at, first_intent_at, deadline_at, null, null, null, null, idempotency_key, null, visible_at
from issued
where tenant = :tenant and task = :task
order by first_intent_at, key;
