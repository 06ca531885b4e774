-- retry, fork, adopt, wake, accept, post_outside: what becomes of tasks whose work or code is changed.
--
-- Lock order: lanes before and outside (ensure_lanes, a call of its own); heads in the order of their names, each waited
-- for; then rows of those tasks, and rows that are new; last, outside sessions in the order of their names.
-- What is fenced: nothing needs a lease; what becomes of a task is judged by the state that its locked head has.

-- Open the next round of tasks that failed or were cancelled, in the order given; answers one row for each.
create function outlast.retry(
    p_tenant text[], p_task text[], p_by text[], p_reason text[], p_reopen text[], p_deadline bigint[], p_now bigint
) returns table (kind text, state text, round integer) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_item record;
    v_head record;
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());
    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_by, p_reason, p_reopen, p_deadline) with ordinality
               as s (tenant, task, who, reason, reopen, deadline, place)
         order by s.place
    loop
        select t.state::text, t.round::integer, t.lane, t.last_event into v_head
          from outlast.tasks t
         where t.tenant = v_item.tenant and t.id = v_item.task;
        if not found then
            return query select 'not_found', '', 0;
            continue;
        elsif v_head.state not in ('failed', 'cancelled') then
            return query select 'not_ended', v_head.state, v_head.round;
            continue;
        elsif exists (select from outlast.operations o
                       where o.tenant = v_item.tenant and o.task = v_item.task and o.kind = 'compensation'
                         and o.state in ('succeeded', 'unknown'))
        then
            return query select 'undone', v_head.state, v_head.round;
            continue;
        end if;
        update outlast.operations o
           set state = 'planned', result = null, error = null, ended_at = null, settled_by = null, lost = false
          from json_array_elements_text(v_item.reopen::json) as x (key)
         where o.tenant = v_item.tenant and o.task = v_item.task and o.key = x.key and o.state = 'failed';
        if v_item.deadline is not null then
            insert into outlast.timers (tenant, task, kind, due_at)
            values (v_item.tenant, v_item.task, 'deadline', v_now + v_item.deadline)
            on conflict (tenant, task, kind) do update set due_at = excluded.due_at;
        end if;
        insert into outlast.queue (lane, tenant, task) values (v_head.lane, v_item.tenant, v_item.task);
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (v_item.tenant, v_item.task, v_head.last_event + 1, 'task.retried', 0,
                '{"by":' || to_json(v_item.who) || ',"reason":' || to_json(v_item.reason) || ',"round":'
                || v_head.round + 1 || '}', v_now);
        update outlast.tasks t
           set state = 'queued', round = t.round + 1, last_event = t.last_event + 1,
               deadline_at = v_now + v_item.deadline
         where t.tenant = v_item.tenant and t.id = v_item.task;
        insert into outlast.audit (tenant, at, who, what, subject, reason, data)
        values (v_item.tenant, v_now, v_item.who, 'retry', v_item.task, v_item.reason,
                '{"round":' || v_head.round + 1 || ',"reopen":' || v_item.reopen || '}');
        return query select 'retried', 'queued', v_head.round + 1;
    end loop;
end
$$;

-- Make new tasks from prefixes of journals, in the order given; answers one row for each. The lane is null for that of
-- the task. A task's journal is written under its head's lock only, so that it stands still while it is copied. A key is
-- claimed by the insert; whoever comes second looks at the winner in a later statement.
create function outlast.fork(
    p_tenant text[], p_task text[], p_new text[], p_before text[], p_by text[], p_reason text[], p_input text[],
    p_lane bigint[], p_deadline bigint[], p_key text[], p_digest text[], p_now bigint
) returns table (kind text, keys text[], made text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_item record;
    v_made record;
    v_held record;
    v_lane record;
    v_before integer;
    v_keys text[];
    v_announce boolean;
    v_data text;
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());
    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_new, p_before, p_by, p_reason, p_input, p_lane, p_deadline, p_key, p_digest)
               with ordinality
               as s (tenant, task, new, before, who, reason, input, lane, deadline, key, digest, place)
         order by s.place
    loop
        select i.forked_from into v_made
          from outlast.inputs i
         where i.tenant = v_item.tenant and i.task = v_item.new;
        if found then
            if v_made.forked_from is distinct from v_item.task then
                raise exception 'task % is there, and is no fork of %', v_item.new, v_item.task
                    using errcode = 'unique_violation';
            end if;
            return query select 'forked', '{}'::text[], null;
            continue;
        end if;
        select i.task, i.request_digest into v_held
          from outlast.inputs i
         where i.tenant = v_item.tenant and i.key = v_item.key;
        if found then
            return query select case when v_held.request_digest = v_item.digest then 'replayed' else 'conflict' end,
                                '{}'::text[], v_held.task;
            continue;
        end if;
        select l.id, l.pool, l.agent, l.version into v_lane
          from outlast.tasks t
          join outlast.lanes l on l.id = coalesce(v_item.lane, t.lane)
         where t.tenant = v_item.tenant and t.id = v_item.task;
        if not found then
            return query select 'not_found', '{}'::text[], null;
            continue;
        end if;
        v_before := null;
        if v_item.before is not null then
            select o.position into v_before
              from outlast.operations o
             where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.before;
            if not found then
                return query select 'no_operation', '{}'::text[], null;
                continue;
            end if;
        end if;

        -- What a fork cannot begin with: what has not ended, and what was undone, or may have been.
        v_keys := array(
            select o.key
              from outlast.operations o
             where o.tenant = v_item.tenant and o.task = v_item.task and (v_before is null or o.position < v_before)
               and (o.state not in ('succeeded', 'failed')
                    or (select true from outlast.operations u
                         where u.tenant = o.tenant and u.task = o.task and u.key = o.key || '/undo'
                           and u.kind = 'compensation' and u.state in ('succeeded', 'unknown')
                         limit 1))
             order by o.position, o.key);
        if v_keys <> '{}' then
            return query select 'unsettled', v_keys, null;
            continue;
        end if;

        insert into outlast.inputs (tenant, task, key, request_digest, agent, version_asked, pool, priority, input, user_name,
               announce, submitted_at, depth, budget, forked_from)
        select i.tenant, v_item.new, v_item.key, coalesce(nullif(v_item.digest, ''), 'fork:' || i.task), i.agent,
               v_lane.version, i.pool, i.priority, coalesce(v_item.input, i.input), i.user_name, i.announce, v_now,
               i.depth, i.budget, i.task
          from outlast.inputs i
         where i.tenant = v_item.tenant and i.task = v_item.task
        on conflict (tenant, key) where key is not null do nothing
        returning announce into v_announce;
        if not found then
            return query
            select case when i.request_digest = v_item.digest then 'replayed' else 'conflict' end, '{}'::text[], i.task
              from outlast.inputs i
             where i.tenant = v_item.tenant and i.key = v_item.key;
            continue;
        end if;
        insert into outlast.operations (tenant, task, key, position, kind, name, state, request, decision, effect,
               attempt, turn, epoch, arguments, result, error, created_at, intent_at, first_intent_at, deadline_at,
               visible_at, due_at, ended_at, settled_by, lost, business_key, business_rule, idempotency_key, usage)
        select o.tenant, v_item.new, o.key, o.position, o.kind, o.name, o.state, o.request, o.decision, o.effect,
               o.attempt, o.turn, 0, o.arguments, o.result, o.error, o.created_at, o.intent_at, o.first_intent_at,
               o.deadline_at, o.visible_at, o.due_at, o.ended_at, o.settled_by, o.lost, o.business_key,
               o.business_rule,
               coalesce(o.idempotency_key, case when o.attempt > 0 then o.task || ':' || o.key end), o.usage
          from outlast.operations o
         where o.tenant = v_item.tenant and o.task = v_item.task
           -- Who was first is recorded behind those that were cut for it: the fork races again.
           and (v_before is null or (o.position < v_before and not o.lost));

        -- Calls that were made there or behind it, but for those whose effects are gone; and what this task has not
        -- taken over itself.
        insert into outlast.issued (tenant, task, key, kind, name, state, request, decision, effect, attempt, turn,
               arguments, idempotency_key, first_intent_at, intent_at, deadline_at, visible_at)
        select o.tenant, v_item.new, o.key, o.kind, o.name, o.state, o.request, o.decision, o.effect, o.attempt, o.turn,
               o.arguments, coalesce(o.idempotency_key, o.task || ':' || o.key), o.first_intent_at, o.intent_at,
               o.deadline_at, o.visible_at
          from outlast.operations o
         where o.tenant = v_item.tenant and o.task = v_item.task and o.position >= v_before and o.attempt > 0
           and o.kind in ('tool', 'model', 'compensation')
           and not exists (select from outlast.operations u
                            where u.tenant = o.tenant and u.task = o.task and u.key = o.key || '/undo'
                              and u.kind = 'compensation' and u.state = 'succeeded')
         union all
        select i.tenant, v_item.new, i.key, i.kind, i.name, i.state, i.request, i.decision, i.effect, i.attempt, i.turn,
               i.arguments, i.idempotency_key, i.first_intent_at, i.intent_at, i.deadline_at,
               i.visible_at
          from outlast.issued i
         where i.tenant = v_item.tenant and i.task = v_item.task
           and not exists (select from outlast.operations o
                            where o.tenant = i.tenant and o.task = i.task and o.key = i.key);

        v_data := '{"agent":' || to_json(v_lane.agent) || ',"pool":' || to_json(v_lane.pool) || ',"forked_from":'
                  || to_json(v_item.task) || '}';
        insert into outlast.tasks (tenant, id, state, last_event, lane, deadline_at)
        values (v_item.tenant, v_item.new, 'queued', 1, v_lane.id, v_now + v_item.deadline);
        insert into outlast.queue (lane, tenant, task) values (v_lane.id, v_item.tenant, v_item.new);
        if v_item.deadline is not null then
            insert into outlast.timers (tenant, task, kind, due_at)
            values (v_item.tenant, v_item.new, 'deadline', v_now + v_item.deadline);
        end if;
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (v_item.tenant, v_item.new, 1, 'task.submitted', 0, v_data, v_now);
        if v_announce then
            insert into outlast.outbox (tenant, task, number, topic, data, created_at)
            values (v_item.tenant, v_item.new, 1, 'task.submitted', v_data, v_now);
        end if;
        insert into outlast.audit (tenant, at, who, what, subject, reason, data)
        values (v_item.tenant, v_now, v_item.who, 'fork', v_item.task, v_item.reason,
                '{"fork":' || to_json(v_item.new) || ',"before":' || coalesce(to_json(v_item.before)::text, 'null') || '}'),
               (v_item.tenant, v_now, v_item.who, 'fork', v_item.new, v_item.reason,
                '{"forked_from":' || to_json(v_item.task) || ',"before":'
                || coalesce(to_json(v_item.before)::text, 'null') || '}');
        return query select 'forked', '{}'::text[], null;
    end loop;
end
$$;

-- Bind tasks to another version, in the order given, by compare-and-set on what was seen; answers one row for each. The
-- lane is that of the version, null for a task that is not there. A task that has not begun is left to its time.
create function outlast.adopt(
    p_tenant text[], p_task text[], p_version text[], p_lane bigint[], p_seen_version text[], p_seen_epoch bigint[],
    p_seen_event bigint[], p_by text[], p_reason text[], p_now bigint
) returns table (kind text, state text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_item record;
    v_head record;
    v_queued boolean;
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());
    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_version, p_lane, p_seen_version, p_seen_epoch, p_seen_event, p_by, p_reason)
               with ordinality
               as s (tenant, task, version, lane, seen_version, seen_epoch, seen_event, who, reason, place)
         order by s.place
    loop
        select t.state::text, t.epoch, t.last_event, t.lane, l.version into v_head
          from outlast.tasks t
          join outlast.lanes l on l.id = t.lane
         where t.tenant = v_item.tenant and t.id = v_item.task;
        if not found then
            return query select 'not_found', '';
            continue;
        elsif v_head.state in ('succeeded', 'failed', 'cancelled') then
            return query select 'ended', v_head.state;
            continue;
        elsif v_head.state = 'running' then
            return query select 'running', v_head.state;
            continue;
        elsif (v_head.version, v_head.epoch, v_head.last_event)
              <> (v_item.seen_version, v_item.seen_epoch, v_item.seen_event)
        then
            return query select 'moved', v_head.state;
            continue;
        end if;
        v_queued := v_head.state = 'queued' or v_head.epoch > 0;
        if v_queued then
            -- An entry that is not found there is stale: it names another lane than its head.
            perform outlast.forget_entries(array[v_head.lane], array[v_item.tenant], array[v_item.task]);
            delete from outlast.timers m
             where m.tenant = v_item.tenant and m.task = v_item.task and m.kind = 'wake';
            insert into outlast.queue (lane, tenant, task) values (v_item.lane, v_item.tenant, v_item.task);
        end if;
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (v_item.tenant, v_item.task, v_head.last_event + 1, 'task.adopted', 0,
                '{"from":' || to_json(v_head.version) || ',"version":' || to_json(v_item.version) || ',"by":'
                || to_json(v_item.who) || '}', v_now);
        update outlast.tasks t
           set lane = v_item.lane, last_event = t.last_event + 1,
               state = case when v_queued then 'queued' else t.state end,
               reason = case when v_queued then null else t.reason end
         where t.tenant = v_item.tenant and t.id = v_item.task;
        insert into outlast.audit (tenant, at, who, what, subject, reason, data)
        values (v_item.tenant, v_now, v_item.who, 'adopt', v_item.task, v_item.reason,
                '{"from":' || to_json(v_head.version) || ',"version":' || to_json(v_item.version) || '}');
        return query select 'adopted', case when v_queued then 'queued' else v_head.state end;
    end loop;
end
$$;

-- Let a task that waits for an operator try again; answers whether it did wait so.
create function outlast.wake(p_tenant text, p_task text, p_by text, p_reason text, p_now bigint)
returns boolean language plpgsql volatile as $$
declare
    v_now bigint;
    v_head record;
begin
    perform outlast.lock_heads(array[p_tenant], array[p_task]);
    v_now := coalesce(p_now, outlast.clock_us());
    select t.lane, t.last_event into v_head
      from outlast.tasks t
     where t.tenant = p_tenant and t.id = p_task and t.state = 'waiting' and t.reason = 'operator';
    if not found then
        return false;
    end if;
    insert into outlast.queue (lane, tenant, task) values (v_head.lane, p_tenant, p_task);
    delete from outlast.timers m where m.tenant = p_tenant and m.task = p_task and m.kind = 'wake';
    insert into outlast.events (tenant, task, number, kind, epoch, data, at)
    values (p_tenant, p_task, v_head.last_event + 1, 'task.woken', 0, '{"reason":"operator"}', v_now);
    update outlast.tasks t
       set state = 'queued', reason = null, last_event = t.last_event + 1
     where t.tenant = p_tenant and t.id = p_task;
    insert into outlast.audit (tenant, at, who, what, subject, reason, data)
    values (p_tenant, v_now, p_by, 'wake', p_task, p_reason, '{}');
    return true;
end
$$;

-- Record verdicts on finished work, in the order given, by compare-and-set on how many there are; answers one row for
-- each.
create function outlast.accept(
    p_tenant text[], p_task text[], p_verdict text[], p_by text[], p_reason text[], p_evidence text[], p_seen integer[],
    p_now bigint
) returns table (kind text, number integer, state text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_item record;
    v_head record;
    v_last record;
    v_number integer;
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());
    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_verdict, p_by, p_reason, p_evidence, p_seen) with ordinality
               as s (tenant, task, verdict, who, reason, evidence, seen, place)
         order by s.place
    loop
        select t.state::text, t.round, t.last_event into v_head
          from outlast.tasks t
         where t.tenant = v_item.tenant and t.id = v_item.task;
        if not found then
            return query select 'not_found', 0, '';
            continue;
        elsif v_head.state <> 'succeeded' then
            return query select 'not_ended', 0, v_head.state;
            continue;
        end if;
        select a.number, a.verdict into v_last
          from outlast.acceptances a
         where a.tenant = v_item.tenant and a.task = v_item.task and a.round = v_head.round
         order by a.number desc
         limit 1;
        v_number := coalesce(v_last.number, 0);
        if v_number <> v_item.seen or v_last.verdict = v_item.verdict then
            return query select 'conflict', v_number, v_head.state;
            continue;
        end if;
        v_number := v_number + 1;
        insert into outlast.acceptances (tenant, task, round, number, verdict, by_whom, reason, evidence, at)
        values (v_item.tenant, v_item.task, v_head.round, v_number, v_item.verdict, v_item.who, v_item.reason,
                v_item.evidence, v_now);
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (v_item.tenant, v_item.task, v_head.last_event + 1, 'task.' || v_item.verdict, 0,
                '{"by":' || to_json(v_item.who) || ',"reason":' || to_json(v_item.reason) || ',"number":' || v_number
                || '}', v_now);
        update outlast.tasks t
           set last_event = t.last_event + 1
         where t.tenant = v_item.tenant and t.id = v_item.task;
        insert into outlast.audit (tenant, at, who, what, subject, reason, data)
        values (v_item.tenant, v_now, v_item.who, 'accept:' || v_item.verdict, v_item.task, v_item.reason,
                '{"number":' || v_number || ',"evidence":' || v_item.evidence || '}');
        return query select 'recorded', v_number, v_head.state;
    end loop;
end
$$;

-- Bring events of outside sessions to the tasks that hold them, in the order given; answers one row for each. Who holds
-- a session is looked up first and looked up again under the holders' locks: while a holder that lives is locked, nobody
-- takes its session over.
create function outlast.post_outside(
    p_tenant text[], p_provider text[], p_session text[], p_run text[], p_event text[], p_data text[], p_digest text[],
    p_most integer, p_now bigint
) returns table (kind text, task text, woken boolean, told boolean) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_seen text[];
    v_task text[];
    v_run text[];
    v_kinds text[];
    v_woken boolean;
    v_told boolean;
begin
    for v_try in 1..2 loop
        v_seen := v_task;
        select array_agg(f.task order by e.place), array_agg(f.run order by e.place) into v_task, v_run
          from unnest(p_tenant, p_provider, p_session, p_run) with ordinality
               as e (tenant, provider, session, run, place)
          left join lateral (
               select o.task, o.run
                 from outlast.outside o
                where o.tenant = e.tenant and o.provider = e.provider and o.session = e.session
                  and o.run in (e.run, '')
                order by o.run desc
                limit 1) f on true;
        if v_try = 1 then
            perform outlast.lock_heads(p_tenant, v_task);
        elsif v_task is distinct from v_seen then
            raise exception 'an outside session changed hands' using errcode = 'serialization_failure';
        end if;
    end loop;
    v_now := coalesce(p_now, outlast.clock_us());

    select array_agg(p.kind order by p.place), bool_or(p.woken), bool_or(p.told) into v_kinds, v_woken, v_told
      from outlast.post(
               p_tenant, v_task, array(select 'outside:' || e.provider
                       from unnest(p_provider) with ordinality as e (provider, place)
                      order by e.place),
               p_data, p_digest,
               array(select e.session || '/' || e.run || '/' || e.event
                       from unnest(p_session, p_run, p_event) with ordinality as e (session, run, event, place)
                      order by e.place),
               p_most, v_now) with ordinality as p (kind, number, state, woken, told, place);

    perform from unnest(p_tenant, p_provider, p_session, v_run, v_kinds) as e (tenant, provider, session, run, kind)
       join outlast.outside o
         on o.tenant = e.tenant and o.provider = e.provider and o.session = e.session and o.run = e.run
      where e.kind = 'accepted'
      order by o.tenant, o.provider, o.session, o.run
        for no key update of o;
    update outlast.outside o
       set last_event = e.event, last_event_at = v_now
      from (select distinct on (e.tenant, e.provider, e.session, e.run) e.*
              from unnest(p_tenant, p_provider, p_session, v_run, p_event, v_kinds) with ordinality
                   as e (tenant, provider, session, run, event, kind, place)
             where e.kind = 'accepted'
             order by e.tenant, e.provider, e.session, e.run, e.place desc) e
     where o.tenant = e.tenant and o.provider = e.provider and o.session = e.session and o.run = e.run;
    return query select e.kind, e.task, v_woken, v_told from unnest(v_kinds, v_task) as e (kind, task);
end
$$;
