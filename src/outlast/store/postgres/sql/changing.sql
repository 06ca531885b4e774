-- The calls of the verbs of change, and their views. Lock order and fencing are stated at the top of 68_change.sql; the
-- views take no locks.

-- Read the lanes that tasks stand in.
-- name: read_lanes
select c.item, l.pool, l.agent, l.tenant, l.priority
  from unnest($1::text[], $2::text[]) with ordinality as c (tenant, task, item)
  join outlast.tasks t on t.tenant = c.tenant and t.id = c.task
  join outlast.lanes l on l.id = t.lane
 order by c.item;

-- Open the next round of tasks.
-- name: retry
select kind, state, round
  from outlast.retry($1, $2, $3, $4, $5, $6, $7);

-- Make tasks from prefixes of journals.
-- name: fork
select kind, keys, made
  from outlast.fork($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- Bind tasks to another version.
-- name: adopt
select kind, state
  from outlast.adopt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- Let a task that waits for an operator try again.
-- name: wake
select outlast.wake($1, $2, $3, $4, $5) as woken;

-- Record verdicts on finished work.
-- name: accept
select kind, number, state
  from outlast.accept($1, $2, $3, $4, $5, $6, $7, $8);

-- Bring events of outside sessions to the tasks that hold them.
-- name: post_outside
select kind, task, woken, told
  from outlast.post_outside($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- Read the calls that were made behind forks; no locks.
-- name: load_issued
select c.item, i.tenant, i.task, i.key, 0 as position, i.kind, i.name, i.state, i.request, i.decision, i.effect,
       i.attempt, i.turn, 0 as epoch, i.arguments, null as result, null as error, 0 as created_at, i.intent_at,
       i.first_intent_at, i.deadline_at, null as due_at, null as ended_at, null as settled_by, null as business_key,
       i.idempotency_key, null as usage, i.visible_at
  from unnest($1::text[], $2::text[]) with ordinality as c (tenant, task, item)
  join outlast.issued i on i.tenant = c.tenant and i.task = c.task
 order by c.item, i.first_intent_at, i.key;

-- Count live tasks by the version that they need: from the queue, the leases, and an index of what waits alone. A task
-- that is not bound yet is served by any version of its agent.
-- name: list_versions
with needed as (
    select l.agent, l.version, count(*) as queued, 0 as running, 0 as waiting
      from (select distinct q.lane, q.tenant, q.task
              from outlast.queue q
             where $1::text is null or q.tenant = $1) q
      join outlast.tasks t on t.tenant = q.tenant and t.id = q.task and t.state = 'queued' and t.lane = q.lane
      join outlast.lanes l on l.id = q.lane
     group by 1, 2
     union all
    select l.agent, l.version, 0, count(*), 0
      from outlast.leases s
      join outlast.tasks t on t.tenant = s.tenant and t.id = s.task
      join outlast.lanes l on l.id = t.lane
     where $1::text is null or s.tenant = $1
     group by 1, 2
     union all
    select l.agent, l.version, 0, 0, count(*)
      from outlast.tasks t
      join outlast.lanes l on l.id = t.lane
     where t.state = 'waiting' and ($1::text is null or t.tenant = $1)
     group by 1, 2
), served as (
    select distinct s.id, a.served ->> 0 as agent, v.version
      from outlast.sessions s
     cross join lateral json_array_elements(s.serves::json -> 'agents') as a (served)
     cross join lateral (values (a.served ->> 1), ('')) as v (version)
     where s.lost_at is null and s.expires_at > outlast.clock_us()
)
select n.agent, n.version, sum(n.queued)::bigint as queued, sum(n.running)::bigint as running,
       sum(n.waiting)::bigint as waiting,
       (select count(*) from served s where s.agent = n.agent and s.version = n.version) as served_by
  from needed n
 group by n.agent, n.version
 order by n.agent, n.version;

-- Read the sessions that live, and what they say that they serve.
-- name: list_sessions
select s.id as session, s.name, s.serves, s.started_at, s.expires_at
  from outlast.sessions s
 where s.lost_at is null and s.expires_at > outlast.clock_us()
 order by s.started_at, s.id;

-- Count unknown calls by tool, up to a bound.
-- name: count_unknown
select o.name as tool, count(*) as unknown
  from (select u.tenant, u.task, u.key from outlast.unsettled u limit $1) u
  join outlast.operations o on o.tenant = u.tenant and o.task = u.task and o.key = u.key
 where o.kind in ('tool', 'compensation')
 group by o.name
 order by o.name collate "C";

-- Read the verdicts on a task's work, the oldest first.
-- name: read_acceptances
select a.round, a.number, a.verdict, a.by_whom as by, a.reason, a.evidence, a.at
  from outlast.acceptances a
 where a.tenant = $1 and a.task = $2
 order by a.round, a.number;

-- Read the outside sessions that a task holds.
-- name: read_outside
select o.tenant, o.provider, o.session, o.run, o.task, o.attached_at, o.last_event, o.last_event_at
  from outlast.outside o
 where o.tenant = $1 and o.task = $2
 order by o.provider, o.session, o.run;
