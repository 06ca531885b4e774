-- Views: read committed, no locks; every statement names its tenant.

-- Read tasks by their names.
-- name: read_tasks
select t.tenant, t.id as task, i.agent, l.version, i.pool, i.priority, t.state, t.reason, t.epoch, t.round,
       t.last_event, i.key, i.user_name as user, i.input, r.result, r.error, a.attempts, u.effects_open,
       i.submitted_at, r.ended_at, t.deadline_at
  from unnest($1::text[], $2::text[]) with ordinality as c (tenant, task, item)
  join outlast.tasks t on t.tenant = c.tenant and t.id = c.task
  join outlast.inputs i on i.tenant = t.tenant and i.task = t.id
  join outlast.lanes l on l.id = t.lane
  left join outlast.results r on r.tenant = t.tenant and r.task = t.id and r.round = t.round
 cross join lateral (
       select (select count(*) from outlast.attempts a where a.tenant = t.tenant and a.task = t.id)
            + (select count(*) from outlast.leases s where s.tenant = t.tenant and s.task = t.id) as attempts) a
 cross join lateral (
       select count(*) as effects_open from outlast.unsettled u where u.tenant = t.tenant and u.task = t.id) u
 order by c.item;

-- List a tenant's tasks, newest first.
-- name: list_tasks
select t.tenant, t.id as task, i.agent, l.version, i.pool, i.priority, t.state, t.reason, t.epoch, t.round,
       t.last_event, i.key, i.user_name as user, i.input, r.result, r.error, a.attempts, u.effects_open,
       i.submitted_at, r.ended_at, t.deadline_at
  from outlast.tasks t
  join outlast.inputs i on i.tenant = t.tenant and i.task = t.id
  join outlast.lanes l on l.id = t.lane
  left join outlast.results r on r.tenant = t.tenant and r.task = t.id and r.round = t.round
 cross join lateral (
       select (select count(*) from outlast.attempts a where a.tenant = t.tenant and a.task = t.id)
            + (select count(*) from outlast.leases s where s.tenant = t.tenant and s.task = t.id) as attempts) a
 cross join lateral (
       select count(*) as effects_open from outlast.unsettled u where u.tenant = t.tenant and u.task = t.id) u
 where t.tenant = $1
   and ($2::text is null or t.state = $2)
   and ($3::text is null or l.agent = $3)
   and ($4::text is null or t.id < $4)
 order by t.id desc
 limit $5;

-- Read events above each cursor.
-- name: read_events
select e.tenant, e.task, e.number, e.kind, e.epoch, e.data, e.at
  from unnest($1::text[], $2::text[], $3::bigint[]) as c (tenant, task, after)
 cross join lateral (
       select e.tenant, e.task, e.number, e.kind, e.epoch, e.data, e.at
         from outlast.events e
        where e.tenant = c.tenant and e.task = c.task and e.number > c.after
        order by e.number
        limit $4) e
 order by e.tenant, e.task, e.number
 limit $4;

-- Read a task's attempts, the running one included.
-- name: read_attempts
select a.epoch, a.round, a.session, a.worker, a.version, a.config, a.started_at, a.ended_at, a."end"
  from outlast.attempts a
 where a.tenant = $1 and a.task = $2
 union all
select l.epoch, l.round, l.session, coalesce(s.name, l.session), l.version, l.config, l.started_at, null, null
  from outlast.leases l
  left join outlast.sessions s on s.id = l.session
 where l.tenant = $1 and l.task = $2
 order by epoch;

-- Read a task's ledger by position.
-- name: list_task_operations
select o.tenant, o.task, o.key, o.position, o.kind, o.name, o.state, o.request, o.decision, o.effect, o.attempt,
       o.turn, o.epoch, o.arguments, o.result, o.error, o.created_at, o.intent_at, o.first_intent_at, o.deadline_at,
       o.due_at, o.ended_at, o.settled_by
  from outlast.operations o
 where o.tenant = $1 and o.task = $2
   and ($3::text is null or o.key = $3)
   and ($4::text is null or o.state = $4)
   and ($5::text is null or (o.position, o.key) > (
           select l.position, l.key
             from outlast.operations l
            where l.tenant = $1 and l.task = $2 and l.key = $5))
 order by o.position, o.key
 limit $6;

-- Read a tenant's reconciliation queue by operation id (task, colon, key).
-- name: list_unknown_operations
select o.tenant, o.task, o.key, o.position, o.kind, o.name, o.state, o.request, o.decision, o.effect, o.attempt,
       o.turn, o.epoch, o.arguments, o.result, o.error, o.created_at, o.intent_at, o.first_intent_at, o.deadline_at,
       o.due_at, o.ended_at, o.settled_by
  from outlast.unsettled u
  join outlast.operations o on o.tenant = u.tenant and o.task = u.task and o.key = u.key
 where u.tenant = $1
   and ($2::text is null or u.key = $2)
   and ($3::text is null or (u.task, u.key) > ($3, $4))
 order by u.task, u.key
 limit $5;

-- Read an operation's evidence.
-- name: read_evidence
select e.number, e.attempt, e.source, e.data, e.at
  from outlast.evidence e
 where e.tenant = $1 and e.task = $2 and e.key = $3
 order by e.number;

-- Read the clock, the schema's number and a bounded count of what is queued.
-- name: read_health
select outlast.clock_us() as now,
       (select coalesce(max(m.number), 0) from outlast.migrations m) as schema_version,
       (select count(*) from (select from outlast.queue limit 10000) q) as queued;
