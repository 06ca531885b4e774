-- The calls of the verbs. Lock order and fencing are stated at the top of each function's file under migrations.

-- Find or make lanes, in a transaction of their own.
-- name: ensure_lanes
select item, lane
  from outlast.ensure_lanes($1, $2, $3, $4, $5);

-- Accept tasks; answers the items that are not simply accepted.
-- name: submit
select item, kind, task
  from outlast.submit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
       $21, $22, $23);

-- Accept tasks with every wait contained in a savepoint.
-- name: submit_guarded
select item, kind, task
  from outlast.submit_guarded($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
       $20, $21, $22, $23, $24, $25);

-- Open or renew a session.
-- name: renew
select alive, now, expires_at
  from outlast.renew($1, $2, $3, $4, $5);

-- End a session that holds no lease, and remove its writers.
-- name: retire
select outlast.retire($1);

-- Give back the leases of a session that its worker does not know of.
-- name: reconcile
select tenant, task
  from outlast.reconcile($1, $2, $3, $4, $5, $6);

-- Claim queued tasks for a session.
-- name: claim
select tenant, task, epoch, round, agent, version, facts, deadline_at, cancelling, lane, now, refused, input, user_name,
       trace, submitted_at, failures, attempts, budget, depth
  from outlast.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- Accept tasks and claim, in one transaction.
-- name: submit_and_claim
select tenant, task, epoch, round, agent, version, facts, deadline_at, cancelling, lane, now, refused, input, user_name,
       trace, submitted_at, failures, attempts, budget, depth, item, kind
  from outlast.submit_and_claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
       $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31);

-- Read inputs of tasks, whether something lies before them, and count their ended attempts; no locks.
-- name: load_inputs
select c.item, i.input, i.user_name, i.trace, i.submitted_at, i.failures, i.attempts, i.budget, i.depth, i.forked,
       i.begun, i.heard
  from unnest($1::text[], $2::text[], $3::integer[]) with ordinality as c (tenant, task, round, item)
 cross join lateral outlast.load_input(c.tenant, c.task, c.round) i
 order by c.item;

-- Read the journals of tasks; no locks.
-- name: load_operations
select c.item, o.tenant, o.task, o.key, o.position, o.kind, o.name, o.state, o.request, o.decision, o.effect,
       o.attempt, o.turn, o.epoch, o.arguments, o.result, o.error, o.created_at, o.intent_at, o.first_intent_at,
       o.deadline_at, o.due_at, o.ended_at, o.settled_by, o.business_key, o.idempotency_key, o.usage,
       o.visible_at
  from unnest($1::text[], $2::text[]) with ordinality as c (tenant, task, item)
  join outlast.operations o on o.tenant = c.tenant and o.task = c.task
 order by c.item, o.position, o.key;

-- Read what lies before tasks; no locks.
-- name: load_inboxes
select c.item, b.tenant, b.task, b.number, b.kind, b.name, b.data, b.at
  from unnest($1::text[], $2::text[]) with ordinality as c (tenant, task, item)
  join outlast.inbox b on b.tenant = c.tenant and b.task = c.task and b.taken_by is null
 order by c.item, b.number;

-- Read the questions that operations of tasks have asked; no locks.
-- name: load_approvals
select c.item, a.tenant, a.id, a.task, a.key, a.number, a.subject, a.state, a.name, a.fingerprint, a.shown, a.reason,
       a.policy, a.target, a.roles, a.quorum, a.four_eyes, a.requester, a.votes, a.arguments, a.edited, a.answer,
       a.created_at, a.expires_at, a.decided_at, a.decided_by, a.decision_reason, a.used_at, a.spent
  from unnest($1::text[], $2::text[]) with ordinality as c (tenant, task, item)
  join outlast.approvals a on a.tenant = c.tenant and a.task = c.task
 order by c.item, a.key, a.number;

-- Settle unknown operations.
-- name: settle
select kind, state, wait_us
  from outlast.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- Append evidence without a lease.
-- name: note
select outlast.note($1, $2, $3, $4, $5, $6, $7, $8);

-- Note requests that are about to leave; answers what decides on each.
-- name: admit
select item, now, task_state, task_epoch, cancelling, lease_epoch, lease_until, kind, tool, state, attempt, epoch, deadline_at,
       decision, paused, approval, approval_state, approval_fingerprint, approval_spent, trace, idempotency_key,
       attempts, data
  from outlast.admit($1, $2, $3, $4, $5, $6, $7, $8);

-- Take unknown operations that are due.
-- name: claim_open
select tenant, task, key, "position", kind, name, state, request, decision, effect, attempt, turn, epoch, arguments,
       result, error, created_at, intent_at, first_intent_at, deadline_at, due_at, ended_at, settled_by, business_key,
       idempotency_key, usage, visible_at, trace, task_ended
  from outlast.claim_open($1, $2, $3, $4, $5);

-- Put taken operations back.
-- name: postpone
select theirs
  from outlast.postpone($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- Put signals into inboxes.
-- name: post
select kind, number, state, woken, told
  from outlast.post($1, $2, $3, $4, $5, $6, $8, $9, $7);

-- Cancel tasks.
-- name: cancel
select kind, state
  from outlast.cancel($1, $2, $3, $4, $5, $6);

-- Say what a worker has heard, and read what there is more.
-- name: news
select tenant, task, facts, cancelling, undoing
  from outlast.news($1, $2, $3, $4);

-- Deliver what ends of tasks and of switches have left.
-- name: deliver
select kind, tenant, task
  from outlast.deliver($1, $2);

-- Decide approvals.
-- name: decide
select d.kind as verdict, d.detail, d.woken, d.told, (d.approval).tenant, (d.approval).id, (d.approval).task,
       (d.approval).key, (d.approval).number, (d.approval).subject, (d.approval).state, (d.approval).name,
       (d.approval).fingerprint, (d.approval).shown, (d.approval).reason, (d.approval).policy, (d.approval).target,
       (d.approval).roles, (d.approval).quorum, (d.approval).four_eyes, (d.approval).requester, (d.approval).votes,
       (d.approval).arguments, (d.approval).edited, (d.approval).answer, (d.approval).created_at,
       (d.approval).expires_at, (d.approval).decided_at, (d.approval).decided_by, (d.approval).decision_reason,
       (d.approval).used_at, (d.approval).spent
  from outlast.decide($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) d;

-- Let a standing rule stand.
-- name: put_rule
select outlast.put_rule($1, $2, $3, $4, $5, $6, $7);

-- Take a standing rule back.
-- name: withdraw_rule
select outlast.withdraw_rule($1, $2, $3, $4, $5);

-- Stop new intents of a scope.
-- name: pause
select outlast.pause($1, $2, $3, $4, $5);

-- Take a switch back; answers whether it stood.
-- name: resume
select outlast.resume($1, $2, $3, $4, $5);

-- Look for what is over: sessions, timers, deadlines.
-- name: sweep
select kind, tenant, task, number
  from outlast.sweep($1, $2, $3, $4, $5);

-- Read pending messages, oldest first, a task's in order; a parked message holds back the later ones of its task.
-- name: take_messages
select o.tenant, o.task, o.number, o.topic, o.data, o.created_at
  from (select o.tenant, o.task, o.number, o.topic, o.data, o.created_at,
               max(o.created_at) over task as shown_at,
               bool_or(o.parked is not null) over task as held
          from outlast.outbox o
        window task as (partition by o.tenant, o.task order by o.number)) o
 where not o.held
 order by o.shown_at, o.tenant, o.task, o.number
 limit $1;

-- Delete published messages and park others.
-- name: confirm_messages
with said as (
    select p.tenant, p.task, p.number, p.parked
      from unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) as p (tenant, task, number, parked)
), parked as (
    update outlast.outbox o
       set parked = s.parked
      from said s
     where s.parked is not null and o.tenant = s.tenant and o.task = s.task and o.number = s.number
)
delete from outlast.outbox o
 using said s
 where s.parked is null and o.tenant = s.tenant and o.task = s.task and o.number = s.number;

-- Tell every process about topics.
-- name: notify
select pg_notify('outlast', topic)
  from unnest($1::text[]) as t (topic);
