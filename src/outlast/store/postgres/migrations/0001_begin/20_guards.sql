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
