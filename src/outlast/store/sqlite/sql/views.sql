-- Views: what is committed, read in one short snapshot, every query by tenant.
--
-- Lock order: none.

-- Read one task as people see it, with or without its input and result.
-- name: read_task
select tasks.tenant, tasks.id, inputs.agent, lanes.version, inputs.pool, inputs.priority, tasks.state, tasks.reason,
    tasks.epoch, tasks.round, tasks.last_event, inputs.key, inputs.user_name,
    case when :whole then inputs.input else 'null' end, case when :whole then results.result end, results.error,
    (select count(*) from attempts where attempts.tenant = tasks.tenant and attempts.task = tasks.id)
    + (select count(*) from leases where leases.tenant = tasks.tenant and leases.task = tasks.id),
    (select count(*) from unsettled where unsettled.tenant = tasks.tenant and unsettled.task = tasks.id),
    inputs.submitted_at, results.ended_at, tasks.deadline_at, tasks.cancelling, inputs.parent, tasks.children,
    (select count(*)
     from approvals
     where approvals.tenant = tasks.tenant and approvals.task = tasks.id and approvals.state = 'pending'),
    inputs.forked_from,
    (select acceptances.verdict
     from acceptances
     where acceptances.tenant = tasks.tenant and acceptances.task = tasks.id and acceptances.round = tasks.round
     order by acceptances.number desc
     limit 1),
    inputs.budget
from tasks
join inputs on inputs.tenant = tasks.tenant and inputs.task = tasks.id
join lanes on lanes.id = tasks.lane
left join results on results.tenant = tasks.tenant and results.task = tasks.id and results.round = tasks.round
where tasks.tenant = :tenant and tasks.id = :task;

-- Read how a task has ended in its latest round.
-- name: read_end
select tasks.tenant, tasks.id, lanes.agent, lanes.version, tasks.state, results.result, results.error
from tasks
join lanes on lanes.id = tasks.lane
left join results on results.tenant = tasks.tenant and results.task = tasks.id and results.round = tasks.round
where tasks.tenant = :tenant and tasks.id = :task;

-- List a tenant's tasks, newest first: their ids rise with time.
-- name: list_tasks
select tasks.id
from tasks
where tasks.tenant = :tenant
    and tasks.id < :before
    and (:state is null or tasks.state = :state)
    and (:agent is null or exists (
        select 1
        from inputs
        where inputs.tenant = tasks.tenant and inputs.task = tasks.id and inputs.agent = :agent
    ))
order by tasks.id desc
limit :limit;

-- List a task's children, newest first.
-- name: list_children
select inputs.task
from inputs
join tasks on tasks.tenant = inputs.tenant and tasks.id = inputs.task
where inputs.tenant = :tenant and inputs.parent = :parent
    and inputs.task < :before
    and (:state is null or tasks.state = :state)
    and (:agent is null or inputs.agent = :agent)
order by inputs.task desc
limit :limit;

-- Read a task's events above a number.
-- name: read_events
select tenant, task, number, kind, epoch, data, at
from events
where tenant = :tenant and task = :task and number > :after
order by number
limit :limit;

-- Read a task's attempts, the running one last.
-- name: read_attempts
select epoch, round, session, worker, version, config, started_at, ended_at, "end"
from attempts
where tenant = :tenant and task = :task
union all
select leases.epoch, leases.round, leases.session, coalesce(sessions.name, leases.session), leases.version,
    leases.config, leases.started_at, null, null
from leases
left join sessions on sessions.id = leases.session
where leases.tenant = :tenant and leases.task = :task
order by 1;

-- Read the ledger of a task by position.
-- name: list_ledger
select tenant, task, key, position, kind, name, state, request, decision, effect, attempt, turn, epoch,
    iif(:values, arguments, null), iif(:values, result, null), error, created_at, intent_at, first_intent_at,
    deadline_at, due_at, ended_at, settled_by, business_key, idempotency_key, usage, visible_at
from operations
where tenant = :tenant and task = :task
    and (:key is null or key = :key)
    and (:state is null or state = :state)
    and (:after is null or (position, key) > (
        select last.position, last.key
        from operations as last
        where last.tenant = :tenant and last.task = :task and last.key = :after
    ))
order by position, key
limit :limit;

-- Read a tenant's reconciliation queue by operation id.
-- name: list_unsettled
select operations.tenant, operations.task, operations.key, position, kind, name, state, request, decision, effect,
    attempt, turn, epoch, iif(:values, arguments, null), iif(:values, result, null), error, created_at, intent_at,
    first_intent_at, deadline_at, due_at, ended_at, settled_by, business_key, idempotency_key, usage, visible_at
from unsettled
join operations on operations.tenant = unsettled.tenant and operations.task = unsettled.task
    and operations.key = unsettled.key
where unsettled.tenant = :tenant
    and (:key is null or unsettled.key = :key)
    and (unsettled.task, unsettled.key) > (:task_after, :key_after)
order by unsettled.task, unsettled.key
limit :limit;

-- Read an operation's evidence below a number, newest first.
-- name: read_evidence
select number, attempt, source, data, at, says
from evidence
where tenant = :tenant and task = :task and key = :key and number < :before
order by number desc
limit :limit;

-- Read what decides whether a request of an operation may leave. One that a fork took over has the notes of all that went
-- under its key: those of the task that the key is of, and of the forks in between; the cross join takes the tasks first.
-- name: read_passage
with recursive line(task, sent) as (
    select task, idempotency_key
    from operations
    where tenant = :tenant and task = :task and key = :key
    union all
    select inputs.forked_from, line.sent
    from line
    join inputs on inputs.tenant = :tenant and inputs.task = line.task
    where line.sent <> line.task || ':' || :key and inputs.forked_from is not null
)
select tasks.state, tasks.epoch, tasks.cancelling, leases.epoch,
    case when sessions.lost_at is null then sessions.expires_at end,
    operations.kind, operations.name, operations.state, operations.attempt, operations.epoch, operations.deadline_at,
    operations.decision,
    exists (
        select 1
        from pauses
        where pauses.tenant in (operations.tenant, :every) and pauses.scope in ('all', 'tool:' || operations.name)
    ),
    approvals.number, approvals.state, approvals.fingerprint, coalesce(approvals.spent, 0), inputs.trace,
    operations.idempotency_key,
    (
        select json_group_array(json_array(noted.attempt, noted.data))
        from (
            select evidence.attempt, evidence.data
            from line
            cross join evidence on evidence.tenant = operations.tenant and evidence.task = line.task
                and evidence.key = operations.key and evidence.source = 'gateway'
            order by evidence.at, evidence.number, evidence.task
            limit :limit
        ) as noted
    )
from operations
join tasks on tasks.tenant = operations.tenant and tasks.id = operations.task
join inputs on inputs.tenant = operations.tenant and inputs.task = operations.task
left join leases on leases.tenant = operations.tenant and leases.task = operations.task
left join sessions on sessions.id = leases.session
left join approvals on approvals.tenant = operations.tenant and approvals.task = operations.task
    and approvals.key = operations.key and approvals.number = (
        select max(last.number)
        from approvals as last
        where last.tenant = operations.tenant and last.task = operations.task and last.key = operations.key
            and last.subject = 'call' and last.state <> 'withdrawn'
    )
where operations.tenant = :tenant and operations.task = :task and operations.key = :key;

-- Count the queue, up to a bound.
-- name: count_queue
select count(*)
from (select 1 from queue limit :limit);
