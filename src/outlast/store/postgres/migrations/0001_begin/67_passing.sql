-- passage, admit: what decides whether a request of a running operation may leave.
--
-- Lock order: heads by (tenant, task), each waited for; then evidence of those tasks only. What is fenced: nothing but
-- evidence is written, which needs no lease; what is answered is read after the heads' locks were waited for.

-- An operation and all that its requests stand under. The clock is read while the row is made, so after the snapshot:
-- what has run out is never taken for alive. An operation that a fork took over has the notes of all that went under its
-- key: those of the task that the key is of, and of the forks in between.
create function outlast.passage(p_tenant text, p_task text, p_key text, p_now bigint, p_limit integer)
returns table (
    now bigint, task_state text, task_epoch bigint, cancelling boolean, lease_epoch bigint, lease_until bigint, kind text,
    tool text, state text, attempt integer, epoch bigint, deadline_at bigint, decision text, paused boolean, approval integer,
    approval_state text, approval_fingerprint text, approval_spent boolean, trace text,
    idempotency_key text, attempts integer[], data text[]
) language sql stable as $$
    select coalesce(p_now, outlast.clock_us()), t.state, t.epoch, t.cancelling, l.epoch,
           case when s.lost_at is null then s.expires_at end, o.kind, o.name, o.state, o.attempt, o.epoch, o.deadline_at,
           o.decision, p.paused, a.number, a.state, a.fingerprint, coalesce(a.spent, false), i.trace,
           o.idempotency_key, e.attempts, e.data
      from outlast.operations o
      join outlast.tasks t on t.tenant = o.tenant and t.id = o.task
      join outlast.inputs i on i.tenant = o.tenant and i.task = o.task
      left join outlast.leases l on l.tenant = o.tenant and l.task = o.task
      left join outlast.sessions s on s.id = l.session
     cross join lateral (
           select exists (select from outlast.pauses w
                           where w.tenant in (o.tenant, '*') and w.scope in ('all', 'tool:' || o.name)) as paused) p
      left join lateral (
           select q.number, q.state, q.fingerprint, q.spent
             from outlast.approvals q
            where q.tenant = o.tenant and q.task = o.task and q.key = o.key and q.subject = 'call'
              and q.state <> 'withdrawn'
            order by q.number desc
            limit 1) a on true
     cross join lateral (
           with recursive line (task) as (
               select o.task
               union all
               select f.forked_from
                 from line
                 join outlast.inputs f on f.tenant = o.tenant and f.task = line.task
                where o.idempotency_key <> line.task || ':' || o.key and f.forked_from is not null)
           select array_agg(n.attempt order by n.at, n.number, n.task) as attempts,
                  array_agg(n.data order by n.at, n.number, n.task) as data
             from (select n.at, n.number, n.task, n.attempt, n.data
                     from line
                     join outlast.evidence n
                       on n.tenant = o.tenant and n.task = line.task and n.key = o.key and n.source = 'gateway'
                    order by n.at, n.number, n.task
                    limit p_limit) n) e
     where o.tenant = p_tenant and o.task = p_task and o.key = p_key
$$;

-- Note requests that are about to leave, and answer what decides on each; nothing for an operation that does not exist.
create function outlast.admit(
    p_tenant text[], p_task text[], p_key text[], p_attempt integer[], p_source text[], p_data text[], p_now bigint,
    p_limit integer
) returns table (
    item bigint, now bigint, task_state text, task_epoch bigint, cancelling boolean, lease_epoch bigint,
    lease_until bigint, kind text, tool text, state text, attempt integer, epoch bigint, deadline_at bigint, decision text,
    paused boolean, approval integer, approval_state text, approval_fingerprint text, approval_spent boolean, trace text,
    idempotency_key text, attempts integer[], data text[]
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_item record;
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());
    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_key, p_attempt, p_source, p_data) with ordinality
               as s (tenant, task, key, attempt, source, data, place)
          join outlast.operations o on o.tenant = s.tenant and o.task = s.task and o.key = s.key
         order by s.place
    loop
        perform outlast.add_evidence(v_item.tenant, v_item.task, v_item.key, v_item.attempt, v_item.source,
                                     v_item.data, null, v_now);
    end loop;
    return query
        select s.place, p.*
          from unnest(p_tenant, p_task, p_key) with ordinality as s (tenant, task, key, place)
         cross join lateral outlast.passage(s.tenant, s.task, s.key, p_now, p_limit) p;
end
$$;
