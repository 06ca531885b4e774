-- The second guard of the protocol's promises, below every verb. The conditions stand in the triggers themselves, so
-- that an update that breaks nothing calls no function.

create function outlast.refuse() returns trigger language plpgsql as $$
begin
    raise exception using message = tg_argv[0], errcode = 'restrict_violation', table = tg_table_name,
        schema = tg_table_schema, constraint = tg_name;
end
$$;

create trigger tasks_epoch after update on outlast.tasks for each row
    when (new.epoch < old.epoch)
    execute function outlast.refuse('the epoch of a task never falls');

create trigger tasks_round after update on outlast.tasks for each row
    when (new.round < old.round)
    execute function outlast.refuse('the round of a task never falls');

create trigger tasks_last_event after update on outlast.tasks for each row
    when (new.last_event < old.last_event)
    execute function outlast.refuse('the event numbers of a task never fall');

create trigger tasks_final after update on outlast.tasks for each row
    when (old.state in ('succeeded', 'failed', 'cancelled') and new.state <> old.state
        and not (new.state = 'queued' and new.round = old.round + 1))
    execute function outlast.refuse('a final task state changes only to queued, in the next round');

create trigger operations_outcome after update on outlast.operations for each row
    when (old.state in ('succeeded', 'failed')
        and (new.state <> old.state or new.result is distinct from old.result or new.error is distinct from old.error)
        and not (old.state = 'failed' and new.state = 'planned')
        and not (new.state = 'unknown' and new.result is not distinct from old.result
            and new.error is not distinct from old.error))
    execute function outlast.refuse('a recorded outcome changes only by reopening or contradicting it');

create trigger events_no_update before update on outlast.events for each statement
    execute function outlast.refuse('events are never changed');

create trigger evidence_no_update before update on outlast.evidence for each statement
    execute function outlast.refuse('evidence is never changed');

create trigger attempts_no_update before update on outlast.attempts for each statement
    execute function outlast.refuse('attempts are never changed');

create trigger results_no_update before update on outlast.results for each statement
    execute function outlast.refuse('results are never changed');

create trigger audit_no_change before update or delete on outlast.audit for each statement
    execute function outlast.refuse('the audit trail is only ever added to');

-- An approval moves as outlast.core.transitions says, and what was decided stays as it was.
create trigger approvals_state after update on outlast.approvals for each row
    when (new.state <> old.state
        and not (old.state = 'pending' and new.state in ('approved', 'rejected', 'expired', 'withdrawn'))
        and not (old.state = 'approved' and new.state in ('expired', 'withdrawn', 'used')))
    execute function outlast.refuse('a decision is not taken back');

create trigger approvals_decided after update on outlast.approvals for each row
    when (old.state <> 'pending'
        and (new.fingerprint, new.shown, new.reason, new.policy, new.target, new.roles, new.quorum, new.four_eyes,
             new.requester, new.votes, new.arguments, new.edited, new.answer, new.created_at, new.expires_at,
             new.decided_at, new.decided_by, new.decision_reason)
            is distinct from
            (old.fingerprint, old.shown, old.reason, old.policy, old.target, old.roles, old.quorum, old.four_eyes,
             old.requester, old.votes, old.arguments, old.edited, old.answer, old.created_at, old.expires_at,
             old.decided_at, old.decided_by, old.decision_reason))
    execute function outlast.refuse('what was decided is never changed');

create trigger approvals_spent after update on outlast.approvals for each row
    when ((old.spent and not new.spent) or (old.used_at is not null and new.used_at is distinct from old.used_at))
    execute function outlast.refuse('a decision that was used stays used');

create trigger votes_no_update before update on outlast.votes for each statement
    execute function outlast.refuse('votes are never changed');

create trigger inbox_taken after update on outlast.inbox for each row
    when (old.taken_by is not null and new.taken_by is distinct from old.taken_by)
    execute function outlast.refuse('what was taken from an inbox is never given back');

create trigger issued_no_change before update or delete on outlast.issued for each statement
    execute function outlast.refuse('what was issued is never changed');

create trigger acceptances_no_change before update or delete on outlast.acceptances for each statement
    execute function outlast.refuse('verdicts are only ever added to');

create trigger rules_withdrawn after update on outlast.rules for each row
    when (old.withdrawn_at is not null)
    execute function outlast.refuse('a rule that was taken back stays so');
