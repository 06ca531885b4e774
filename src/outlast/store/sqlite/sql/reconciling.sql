-- claim_open, postpone, read_open: the reconciliation queue as the settler works it.
--
-- Lock order: the file's one writer lock; it is had before anything is looked at. What is fenced: the operation by
-- its state and turn.

-- Read unknown operations that are due, that nobody works on, and whose tool is known; the one due longest first.
-- name: due_open
select inputs.trace, tasks.state,
    operations.tenant, operations.task, operations.key, position, kind, name, operations.state, request, decision, effect,
    attempt, turn, operations.epoch, arguments, result, error, created_at, intent_at, first_intent_at,
    operations.deadline_at, due_at, ended_at, settled_by, business_key, idempotency_key, usage,
    visible_at
from unsettled
join operations on operations.tenant = unsettled.tenant and operations.task = unsettled.task
    and operations.key = unsettled.key
join tasks on tasks.tenant = unsettled.tenant and tasks.id = unsettled.task
join inputs on inputs.tenant = unsettled.tenant and inputs.task = unsettled.task
where unsettled.ask_at <= :now and unsettled.claimed_until <= :now and unsettled.resend = 0
    and operations.state = 'unknown'
    and tasks.state <> 'running' and operations.name in (select value from json_each(:tools))
order by unsettled.ask_at, unsettled.tenant, unsettled.task, unsettled.key
limit :limit;

-- Take the next turn of an unknown operation without a lease.
-- name: take_open_turn
update operations
set turn = turn + 1
where tenant = :tenant and task = :task and key = :key and turn = :turn and state = 'unknown';

-- Keep who looks at an unknown operation, and until when.
-- name: hold_open
update unsettled
set claimed_by = :session, claimed_until = :until
where tenant = :tenant and task = :task and key = :key;

-- Read what putting back compares with.
-- name: read_open_turn
select operations.state, operations.turn, unsettled.claimed_by
from unsettled
join operations on operations.tenant = unsettled.tenant and operations.task = unsettled.task
    and operations.key = unsettled.key
where unsettled.tenant = :tenant and unsettled.task = :task and unsettled.key = :key;

-- Look for evidence that says something of an operation and is newer than what was considered.
-- name: newer_evidence
select 1
from evidence
where tenant = :tenant and task = :task and key = :key and number > :seen and says is not null
limit 1;

-- Put an unknown operation back.
-- name: put_back
update unsettled
set asked = asked + not :held,
    unusable = case when :held then unusable when :unusable then unusable + 1 else 0 end, ask_at = :ask_at,
    claimed_until = 0, claimed_by = :mark, why = :why, resend = 0
where tenant = :tenant and task = :task and key = :key;

-- Read an operation's place in the reconciliation queue, and until when a provider wants to be left alone.
-- name: read_open
select since, asked, unusable, ask_at, sender_gone, why, resend,
    (select until_at
     from provider_waits
     where tenant = :tenant and provider = :provider and until_at > :now)
from unsettled
where tenant = :tenant and task = :task and key = :key;
