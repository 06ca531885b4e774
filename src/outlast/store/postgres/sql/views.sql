-- Views: read committed, no locks; every statement names its tenant.

-- Read tasks by their names.
-- name: read_tasks
select t.tenant, t.id as task, i.agent, l.version, i.pool, i.priority, t.state, t.reason, t.epoch, t.round,
       t.last_event, i.key, i.user_name as user, i.input, r.result, r.error, a.attempts, u.effects_open,
       i.submitted_at, r.ended_at, t.deadline_at, t.cancelling, i.parent, t.children, q.asks,
       i.forked_from, v.accepted, i.budget
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
 cross join lateral (
       select count(*) as asks from outlast.approvals q
        where q.tenant = t.tenant and q.task = t.id and q.state = 'pending') q
 cross join lateral (
       select (select v.verdict
                 from outlast.acceptances v
                where v.tenant = t.tenant and v.task = t.id and v.round = t.round
                order by v.number desc
                limit 1) as accepted) v
 order by c.item;

-- Read how tasks have ended in their latest round; one by one, however few there were when this was planned.
-- name: read_ends
select t.tenant, t.task, l.agent, l.version, t.state, r.result, r.error
  from unnest($1::text[], $2::text[]) as c (tenant, task)
 cross join lateral (
       select t.tenant, t.id as task, t.state, t.round, t.lane
         from outlast.tasks t
        where t.tenant = c.tenant and t.id = c.task
        limit 1) t
 cross join lateral (
       select l.agent, l.version
         from outlast.lanes l
        where l.id = t.lane
        limit 1) l
  left join lateral (
       select r.result, r.error
         from outlast.results r
        where r.tenant = t.tenant and r.task = t.task and r.round = t.round
        limit 1) r on true;

-- List a tenant's tasks, newest first, without their inputs and results.
-- name: list_tasks
select t.tenant, t.id as task, i.agent, l.version, i.pool, i.priority, t.state, t.reason, t.epoch, t.round,
       t.last_event, i.key, i.user_name as user, 'null' as input, null as result, r.error, a.attempts, u.effects_open,
       i.submitted_at, r.ended_at, t.deadline_at, t.cancelling, i.parent, t.children, q.asks,
       i.forked_from, v.accepted, i.budget
  from outlast.tasks t
  join outlast.inputs i on i.tenant = t.tenant and i.task = t.id
  join outlast.lanes l on l.id = t.lane
  left join outlast.results r on r.tenant = t.tenant and r.task = t.id and r.round = t.round
 cross join lateral (
       select (select count(*) from outlast.attempts a where a.tenant = t.tenant and a.task = t.id)
            + (select count(*) from outlast.leases s where s.tenant = t.tenant and s.task = t.id) as attempts) a
 cross join lateral (
       select count(*) as effects_open from outlast.unsettled u where u.tenant = t.tenant and u.task = t.id) u
 cross join lateral (
       select count(*) as asks from outlast.approvals q
        where q.tenant = t.tenant and q.task = t.id and q.state = 'pending') q
 cross join lateral (
       select (select v.verdict
                 from outlast.acceptances v
                where v.tenant = t.tenant and v.task = t.id and v.round = t.round
                order by v.number desc
                limit 1) as accepted) v
 where t.tenant = $1
   and ($2::text is null or t.state = $2)
   and ($3::text is null or l.agent = $3)
   and ($4::text is null or t.id < $4)
 order by t.id desc
 limit $5;

-- List a task's children, newest first, without their inputs and results.
-- name: list_children
select t.tenant, t.id as task, i.agent, l.version, i.pool, i.priority, t.state, t.reason, t.epoch, t.round,
       t.last_event, i.key, i.user_name as user, 'null' as input, null as result, r.error, a.attempts, u.effects_open,
       i.submitted_at, r.ended_at, t.deadline_at, t.cancelling, i.parent, t.children, q.asks,
       i.forked_from, v.accepted, i.budget
  from outlast.inputs i
  join outlast.tasks t on t.tenant = i.tenant and t.id = i.task
  join outlast.lanes l on l.id = t.lane
  left join outlast.results r on r.tenant = t.tenant and r.task = t.id and r.round = t.round
 cross join lateral (
       select (select count(*) from outlast.attempts a where a.tenant = t.tenant and a.task = t.id)
            + (select count(*) from outlast.leases s where s.tenant = t.tenant and s.task = t.id) as attempts) a
 cross join lateral (
       select count(*) as effects_open from outlast.unsettled u where u.tenant = t.tenant and u.task = t.id) u
 cross join lateral (
       select count(*) as asks from outlast.approvals q
        where q.tenant = t.tenant and q.task = t.id and q.state = 'pending') q
 cross join lateral (
       select (select v.verdict
                 from outlast.acceptances v
                where v.tenant = t.tenant and v.task = t.id and v.round = t.round
                order by v.number desc
                limit 1) as accepted) v
 where i.tenant = $1 and i.parent = $6
   and ($2::text is null or t.state = $2)
   and ($3::text is null or l.agent = $3)
   and ($4::text is null or i.task < $4)
 order by i.task desc
 limit $5;

-- Read events above each cursor, until so many bytes of data are full. How long a text is costs no look into it.
-- name: read_events
select e.tenant, e.task, e.number, e.kind, e.epoch, e.data, e.at
  from (select e.tenant, e.task, e.number, e.kind, e.epoch, e.data, e.at,
               sum(octet_length(e.data)) over (
                   order by e.tenant, e.task, e.number rows between unbounded preceding and 1 preceding) as before
          from (select e.tenant, e.task, e.number, e.kind, e.epoch, e.data, e.at
                  from unnest($1::text[], $2::text[], $3::bigint[]) as c (tenant, task, after)
                 cross join lateral (
                       select e.tenant, e.task, e.number, e.kind, e.epoch, e.data, e.at
                         from outlast.events e
                        where e.tenant = c.tenant and e.task = c.task and e.number > c.after
                        order by e.number
                        limit $4) e
                 order by e.tenant, e.task, e.number
                 limit $4) e) e
 where $5::bigint is null or e.before is null or e.before < $5
 order by e.tenant, e.task, e.number;

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

-- Read a task's ledger by position. Values that nobody asks for cost nothing: they lie beside the row.
-- name: list_task_operations
select o.tenant, o.task, o.key, o.position, o.kind, o.name, o.state, o.request, o.decision, o.effect, o.attempt,
       o.turn, o.epoch, case when $7 then o.arguments end as arguments, case when $7 then o.result end as result,
       o.error, o.created_at, o.intent_at, o.first_intent_at, o.deadline_at,
       o.due_at, o.ended_at, o.settled_by, o.business_key, o.idempotency_key, o.usage, o.visible_at
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
       o.turn, o.epoch, case when $6 then o.arguments end as arguments, case when $6 then o.result end as result,
       o.error, o.created_at, o.intent_at, o.first_intent_at, o.deadline_at,
       o.due_at, o.ended_at, o.settled_by, o.business_key, o.idempotency_key, o.usage, o.visible_at
  from outlast.unsettled u
  join outlast.operations o on o.tenant = u.tenant and o.task = u.task and o.key = u.key
 where u.tenant = $1
   and ($2::text is null or u.key = $2)
   and ($3::text is null or (u.task, u.key) > ($3, $4))
 order by u.task, u.key
 limit $5;

-- Read an operation's evidence, oldest first: of the newest ones below a number, until they are enough.
-- name: read_evidence
select e.number, e.attempt, e.source, e.data, e.at, e.says
  from (select e.number, e.attempt, e.source, e.data, e.at, e.says,
               sum(octet_length(e.data)) over (
                   order by e.number desc rows between unbounded preceding and 1 preceding) as newer
          from (select e.number, e.attempt, e.source, e.data, e.at, e.says
                  from outlast.evidence e
                 where e.tenant = $1 and e.task = $2 and e.key = $3 and ($4::integer is null or e.number < $4)
                 order by e.number desc
                 limit $5) e) e
 where $6::bigint is null or e.newer is null or e.newer < $6
 order by e.number;

-- Read what decides whether a request of an operation may leave.
-- name: read_passage
select now, task_state, task_epoch, cancelling, lease_epoch, lease_until, kind, tool, state, attempt, epoch, deadline_at,
       decision, paused, approval, approval_state, approval_fingerprint, approval_spent, trace,
       idempotency_key, attempts, data
  from outlast.passage($1, $2, $3, $4, $5);

-- Read an operation's place in the reconciliation queue, and until when a provider wants to be left alone.
-- name: read_open
select u.since, u.asked, u.unusable, u.ask_at, u.sender_gone, u.why, u.resend,
       (select w.until_at
          from outlast.provider_waits w
         where w.tenant = $1 and w.provider = $4 and w.until_at > coalesce($5, outlast.clock_us())) as held_until
  from outlast.unsettled u
 where u.tenant = $1 and u.task = $2 and u.key = $3;

-- Read how a tenant's unknowns ended, tool by tool, and count those that are open, up to a bound.
-- name: read_settled_counts
select s.tool, sum(s.unknown)::bigint as unknown, sum(s.happened)::bigint as happened,
       sum(s.did_not_happen)::bigint as did_not_happen, sum(s.sent_again)::bigint as sent_again
  from (select c.tool, 0 as unknown, c.happened, c.did_not_happen, c.sent_again
          from outlast.settled_counts c
         where c.tenant = $1
         union all
        select o.name, 1, 0, 0, 0
          from (select u.tenant, u.task, u.key from outlast.unsettled u where u.tenant = $1 limit $2) u
          join outlast.operations o on o.tenant = u.tenant and o.task = u.task and o.key = u.key
         where o.kind in ('tool', 'compensation')) s
 group by s.tool
 order by s.tool collate "C";

-- List a tenant's switches, and those for everybody.
-- name: list_pauses
select p.tenant, p.scope, p.reason, p.by_whom as by, p.at
  from outlast.pauses p
 where p.tenant in ($1, '*')
 order by p.tenant, p.scope;

-- Read who holds a business key: whoever has it, else one that is in doubt, else the success that stands longest; one
-- that is done and over is nobody's.
-- name: read_business_key
select b.task, b.key, case b.state when 'done' then 'done' else 'held' end as state, b.until_at as until
  from outlast.business_keys b
 where b.tenant = $1 and b.tool = $2 and b.value = $3
   and (b.until_at is null or b.until_at > outlast.clock_us())
 order by b.state = 'done', b.state = 'doubt', b.until_at desc, b.task, b.key
 limit 1;

-- Read a tenant's audit trail above a number.
-- name: read_audit
select a.number, a.at, a.who, a.what, a.subject, a.reason, a.data
  from outlast.audit a
 where a.tenant = $1 and a.number > $2
 order by a.number
 limit $3;

-- Read what lies before a task above a number and was not taken.
-- name: read_inbox
select b.tenant, b.task, b.number, b.kind, b.name, b.data, b.at
  from outlast.inbox b
 where b.tenant = $1 and b.task = $2 and b.number > $3 and b.taken_by is null
 order by b.number;

-- Read an approval.
-- name: read_approval
select a.tenant, a.id, a.task, a.key, a.number, a.subject, a.state, a.name, a.fingerprint, a.shown, a.reason,
       a.policy, a.target, a.roles, a.quorum, a.four_eyes, a.requester, a.votes, a.arguments, a.edited, a.answer,
       a.created_at, a.expires_at, a.decided_at, a.decided_by, a.decision_reason, a.used_at, a.spent
  from outlast.approvals a
 where a.tenant = $1 and a.id = $2;

-- List a tenant's pending approvals by age, along an index that holds no others.
-- name: list_pending_approvals
select a.tenant, a.id, a.task, a.key, a.number, a.subject, a.state, a.name, a.fingerprint, a.shown, a.reason,
       a.policy, a.target, a.roles, a.quorum, a.four_eyes, a.requester, a.votes, a.arguments, a.edited, a.answer,
       a.created_at, a.expires_at, a.decided_at, a.decided_by, a.decision_reason, a.used_at, a.spent
  from outlast.approvals a
 where a.tenant = $1 and a.state = 'pending' and (a.created_at, a.id) > ($2, $3)
 order by a.created_at, a.id
 limit $4;

-- List a tenant's approvals by age.
-- name: list_approvals
select a.tenant, a.id, a.task, a.key, a.number, a.subject, a.state, a.name, a.fingerprint, a.shown, a.reason,
       a.policy, a.target, a.roles, a.quorum, a.four_eyes, a.requester, a.votes, a.arguments, a.edited, a.answer,
       a.created_at, a.expires_at, a.decided_at, a.decided_by, a.decision_reason, a.used_at, a.spent
  from outlast.approvals a
 where a.tenant = $1 and (a.created_at, a.id) > ($2, $3)
   and ($5::text is null or a.state = $5)
 order by a.created_at, a.id
 limit $4;

-- List a task's approvals by age.
-- name: list_task_approvals
select a.tenant, a.id, a.task, a.key, a.number, a.subject, a.state, a.name, a.fingerprint, a.shown, a.reason,
       a.policy, a.target, a.roles, a.quorum, a.four_eyes, a.requester, a.votes, a.arguments, a.edited, a.answer,
       a.created_at, a.expires_at, a.decided_at, a.decided_by, a.decision_reason, a.used_at, a.spent
  from outlast.approvals a
 where a.tenant = $1 and a.task = $6 and (a.created_at, a.id) > ($2, $3)
   and ($5::text is null or a.state = $5)
 order by a.created_at, a.id
 limit $4;

-- Read who said what about an approval.
-- name: read_votes
select v.approval, v.who, v.verdict, v.fingerprint, v.reason, v.via, v.at
  from outlast.votes v
 where v.tenant = $1 and v.approval = $2
 order by v.number;

-- Read the rules that stand for a tool, and the version of the list: the number of its last change.
-- name: read_rules
select v.version, r.tenant, r.tool, r.verdict, r.by_whom as by, r.reason, r.bounds, r.number, r.at
  from (select coalesce(max(r.changed), 0) as version
          from outlast.rules r
         where r.tenant = $1 and r.tool = $2) v
  left join outlast.rules r on r.tenant = $1 and r.tool = $2 and r.withdrawn_at is null
 order by r.number;

-- List a tenant's standing rules.
-- name: list_rules
select r.tenant, r.tool, r.verdict, r.by_whom as by, r.reason, r.bounds, r.number, r.at
  from outlast.rules r
 where r.tenant = $1 and r.withdrawn_at is null
 order by r.tool, r.number;

-- Read the clock, the schema's number and a bounded count of what is queued.
-- name: read_health
select outlast.clock_us() as now,
       (select coalesce(max(m.number), 0) from outlast.migrations m) as schema_version,
       (select count(*) from (select from outlast.queue limit 10000) q) as queued;
