-- settle, note: facts from outside, with or without a lease.
--
-- Lock order: the file's one writer lock. What is fenced: the operation by its state and turn.

-- Settle an unknown operation by compare-and-set on its turn.
-- name: settle_operation
update operations
set state = :state, result = :result, error = :error, turn = turn + 1, ended_at = :ended_at, settled_by = :by
where tenant = :tenant and task = :task and key = :key and turn = :turn and state = 'unknown';
