-- settle, note: facts from outside, with or without a lease.
--
-- Lock order: the file's one writer lock. What is fenced: the operation by its state and turn.

-- Settle an unknown operation by compare-and-set on its turn.
-- name: settle_operation
update operations
set state = :state, result = :result, error = case when :keeps_error then error else :error end, turn = turn + 1,
    ended_at = :ended_at, settled_by = :by
where tenant = :tenant and task = :task and key = :key and turn = :turn and state = 'unknown';

-- Mark that an unknown operation is to be sent again: nobody asks any more, and its intent takes it out.
-- name: mark_resend
update unsettled
set resend = :resend, ask_at = :ask_at, claimed_until = 0
where tenant = :tenant and task = :task and key = :key;

-- Read what evidence is compared with.
-- name: read_settled
select state, attempt, turn, settled_by, effect
from operations
where tenant = :tenant and task = :task and key = :key;

-- Open a settled operation again, or stop one that is to be sent again, since late evidence contradicts that; what was
-- recorded stays to be seen.
-- name: contradict_operation
update operations
set state = 'unknown', ended_at = null, lost = 0
where tenant = :tenant and task = :task and key = :key and state in ('succeeded', 'failed', 'planned', 'approved');

-- Have an unknown operation looked at now, which was to be sent again.
-- name: ask_after_all
update unsettled
set resend = 0, ask_at = :now
where tenant = :tenant and task = :task and key = :key and resend = 1;

-- Keep that an unknown operation's sender is gone, and have it looked at by now at the latest unless it is to be sent
-- again.
-- name: ask_without_sender
update unsettled
set sender_gone = 1, ask_at = case when resend then ask_at else min(coalesce(ask_at, :now), :now) end
where tenant = :tenant and task = :task and key = :key;

-- Have an unknown operation looked at by now at the latest.
-- name: ask_now
update unsettled
set ask_at = min(coalesce(ask_at, :now), :now)
where tenant = :tenant and task = :task and key = :key;
