-- Heads, leases, queue entries, timers, events: what several verbs share.
--
-- Lock order: none is needed. A writer begins as the writer of the whole file (begin immediate), so what a
-- verb has read cannot change before it commits. Whoever acts under a lease compares the epoch here all the
-- same: the lease may have been lost before this transaction began.

-- Read the clock that decides: this database's, once a transaction and after its lock was taken.
-- name: read_clock
select cast(round(unixepoch('subsec') * 1000) as integer) * 1000;

-- Read heads, and which of those asked for each is.
-- name: read_heads
select json_group_array(json_array(asked.key, state, reason, epoch, round, facts, last_event, lane, deadline_at,
    cancelling, undoing, children))
from jsonb_each(:names) as asked
cross join tasks on tasks.tenant = asked.value ->> 0 and tasks.id = asked.value ->> 1;

-- Write heads back, each fenced by the epoch that was read.
-- name: write_heads
update tasks
set state = :state, reason = :reason, epoch = :next_epoch, round = :round, facts = :facts, last_event = :last_event,
    lane = :lane, deadline_at = :deadline_at, cancelling = :cancelling, undoing = :undoing
where tenant = :tenant and id = :task and epoch = :epoch;

-- Append events; their numbers were counted on from the head.
-- name: append_events
insert into events (tenant, task, number, kind, epoch, data, at)
values (:tenant, :task, :number, :kind, :epoch, :data, :at);

-- Find a lane.
-- name: find_lane
select id
from lanes
where pool = :pool and agent = :agent and version = :version and tenant = :tenant and priority = :priority;

-- Make a lane.
-- name: make_lane
insert into lanes (pool, agent, version, tenant, priority)
values (:pool, :agent, :version, :tenant, :priority)
returning id;

-- Take the next places in the queue; answer the last of them.
-- name: take_places
update sequences
set value = value + :count
where name = 'queue'
returning value;

-- Put tasks into their lanes.
-- name: enqueue
insert into queue (lane, seq, tenant, task)
values (:lane, :seq, :tenant, :task);

-- Take a task out of the queue.
-- name: dequeue
delete from queue
where tenant = :tenant and task = :task;

-- Set a timer, or move it.
-- name: set_timer
insert into timers (tenant, task, kind, due_at)
values (:tenant, :task, :kind, :due_at)
on conflict (tenant, task, kind) do update set due_at = excluded.due_at;

-- Take the wake timer away.
-- name: clear_wake
delete from timers
where tenant = :tenant and task = :task and kind = 'wake';

-- Take all timers of a task away.
-- name: clear_timers
delete from timers
where tenant = :tenant and task = :task;

-- End attempts: what their leases say stays as attempts that ended. A session that is gone is known by its id.
-- name: keep_attempts
insert into attempts (tenant, task, epoch, round, session, worker, version, config, started_at, ended_at, "end")
select tenant, task, epoch, round, session,
    coalesce((select name from sessions where sessions.id = leases.session), session),
    version, config, started_at, :ended_at, :end
from leases
where tenant = :tenant and task = :task;

-- Give up leases.
-- name: drop_leases
delete from leases
where tenant = :tenant and task = :task;

-- Read what an ended task leaves open: effects whose intent is on disk and whose outcome is not.
-- name: open_effects
select key
from operations
where tenant = :tenant and task = :task and state = 'running' and kind in ('tool', 'model', 'compensation');

-- Say of a running operation that nobody knows.
-- name: lose_operation
update operations
set state = 'unknown'
where tenant = :tenant and task = :task and key = :key and state = 'running';

-- Put an operation into the reconciliation queue, if it is not there; evidence may have said before that its sender is
-- gone.
-- name: add_unsettled
insert into unsettled (tenant, task, key, since, ask_at, sender_gone, why)
values (
    :tenant, :task, :key, :since, :ask_at,
    :sender_gone or exists (
        select 1
        from evidence
        join operations on operations.tenant = evidence.tenant and operations.task = evidence.task
            and operations.key = evidence.key and operations.attempt = evidence.attempt
        where evidence.tenant = :tenant and evidence.task = :task and evidence.key = :key and evidence.says = 'over'),
    :why)
on conflict do nothing;

-- Keep that whoever made an attempt of an operation in the reconciliation queue cannot send any more.
-- name: sender_is_gone
update unsettled
set sender_gone = 1
where tenant = :tenant and task = :task and key = :key;

-- Take an operation out of the reconciliation queue.
-- name: drop_unsettled
delete from unsettled
where tenant = :tenant and task = :task and key = :key;

-- Say whether anything is in the reconciliation queue.
-- name: any_unsettled
select 1
from unsettled
limit 1;

-- Count what a task has in the reconciliation queue.
-- name: count_unsettled
select count(*)
from unsettled
where tenant = :tenant and task = :task;

-- Keep how tasks ended.
-- name: keep_results
insert into results (tenant, task, round, state, result, error, effects_open, ended_at)
values (:tenant, :task, :round, :state, :result, :error, :effects_open, :ended_at);

-- Read what the ends of tasks concern: whether each is to be announced, whose child it is, how much of it stands in
-- the reconciliation queue, and whether it has calls under way, timers, a place among what is held back, questions
-- that are open; and which of those asked for each is. Most have none of these, and pay for one look.
-- name: read_leavings
select json_group_array(json_array(asked.key, announce, inputs.parent, parent_key,
    (select count(*) from unsettled where unsettled.tenant = inputs.tenant and unsettled.task = inputs.task),
    exists (
        select 1
        from operations
        where operations.tenant = inputs.tenant and operations.task = inputs.task and operations.state = 'running'
            and operations.kind in ('tool', 'model', 'compensation')
    ),
    exists (select 1 from timers where timers.tenant = inputs.tenant and timers.task = inputs.task),
    exists (select 1 from held_tasks where held_tasks.tenant = inputs.tenant and held_tasks.task = inputs.task),
    exists (
        select 1
        from approvals
        where approvals.tenant = inputs.tenant and approvals.task = inputs.task
            and (approvals.state = 'pending' or (approvals.state = 'approved' and approvals.subject = 'call'))
    )))
from jsonb_each(:names) as asked
cross join inputs on inputs.tenant = asked.value ->> 0 and inputs.task = asked.value ->> 1;

-- Take back that operations of a task are to be sent again: a task that is over sends nothing, so they are looked at
-- like any other.
-- name: send_nothing
update unsettled
set resend = 0, ask_at = :now
where tenant = :tenant and task = :task and resend = 1;

-- Write an outbox message; it has the number of the event that it announces.
-- name: announce
insert into outbox (tenant, task, number, topic, data, created_at)
values (:tenant, :task, :number, :topic, :data, :created_at);

-- Read when the earliest of a task's waits is due.
-- name: earliest_wait
select min(due_at)
from operations
where tenant = :tenant and task = :task and kind in ('timer', 'signal', 'child') and state = 'running';

-- Append one piece of evidence to an operation.
-- name: add_evidence
insert into evidence (tenant, task, key, number, attempt, source, data, at, says)
select :tenant, :task, :key, coalesce(max(number), 0) + 1, :attempt, :source, :data, :at, :says
from evidence
where tenant = :tenant and task = :task and key = :key;

-- Say whether evidence has it that an operation which changes something happened, of whichever attempt, and no person has
-- settled it since.
-- name: word_stands
select 1
from evidence
join operations on operations.tenant = evidence.tenant and operations.task = evidence.task
    and operations.key = evidence.key
where evidence.tenant = :tenant and evidence.task = :task and evidence.key = :key and evidence.says = 'happened'
    and evidence.source <> 'gateway' and evidence.attempt between 1 and operations.attempt and operations.effect <> 'read'
    and evidence.number > (
        select coalesce(max(word.number), 0)
        from evidence as word
        where word.tenant = :tenant and word.task = :task and word.key = :key and word.source = 'person'
    )
limit 1;

-- Mark that something was posted for a task that runs.
-- name: tell_worker
update leases
set news = :facts
where tenant = :tenant and task = :task;

-- Leave something for another task, to be delivered apart from this transaction.
-- name: leave_post
insert into posts (tenant, task, kind, name, data)
values (:tenant, :task, :kind, :name, :data);

-- Leave a cancel for each child of a task that lives and is not detached; name is the parent's.
-- name: leave_cancels
insert into posts (tenant, task, kind, name, data)
select inputs.tenant, inputs.task, 'cancel', :parent, '{}'
from inputs
join tasks on tasks.tenant = inputs.tenant and tasks.id = inputs.task
where inputs.tenant = :tenant and inputs.parent = :task and inputs.detached = 0
    and tasks.state in ('queued', 'running', 'waiting')
order by inputs.task;

-- Read who asked for a cancel, and why; nobody can ask twice while it stands.
-- name: read_cancel
select data
from events
where tenant = :tenant and task = :task and kind = 'task.cancel_requested'
order by number desc
limit 1;

-- Read the questions that are open, about one operation of a task or all of them.
-- name: open_approvals
select id
from approvals
where tenant = :tenant and task = :task and (:key is null or key = :key)
    and (state = 'pending' or (state = 'approved' and subject = 'call'))
order by key, number;

-- Withdraw a question.
-- name: withdraw_approval
update approvals
set state = 'withdrawn'
where tenant = :tenant and id = :id;

-- Whether a task has decided, in this round, to undo what it has done.
-- name: read_undo_decision
select 1
  from operations
 where tenant = :tenant and task = :task and kind = 'value' and name = 'undo' and state = 'succeeded'
   and json_extract(result, '$.task') = :task and json_extract(result, '$.round') = :round
 limit 1;
