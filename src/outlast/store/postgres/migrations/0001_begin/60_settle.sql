-- settle, note, claim_open, postpone: facts from outside, with or without a lease.
--
-- Lock order: heads by (tenant, task), each waited for (claim_open: the session's row, then heads with skip locked);
-- then, in note, business keys that may be brought in doubt, by name, since flushes may want them; then rows of those
-- tasks only; last, in postpone, waits by tenant and provider; in settle, counts by tenant and tool.
-- What is fenced: operations by their state and turn, read after their head's lock was waited for.

-- Lock heads in the order of their names, waiting for each.
create function outlast.lock_heads(p_tenant text[], p_task text[]) returns void language plpgsql volatile as $$
declare
    v_name record;
begin
    for v_name in
        select distinct s.tenant collate "C" as tenant, s.task collate "C" as task
          from unnest(p_tenant, p_task) as s (tenant, task)
         order by 1, 2
    loop
        perform from outlast.tasks t where t.tenant = v_name.tenant and t.id = v_name.task for no key update;
    end loop;
end
$$;

-- Settle unknown operations, each by compare-and-set; answers one row for each, in order.
create function outlast.settle(
    p_tenant text[], p_task text[], p_key text[], p_verdict text[], p_by text[], p_reason text[], p_turn integer[],
    p_result text[], p_evidence text[], p_forced boolean[], p_retryable boolean[], p_now bigint
) returns table (kind text, state text, wait_us bigint) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_item record;
    v_head record;
    v_op record;
    v_state text;
    v_kinds text[] := array_fill(null::text, array[cardinality(p_key)]);
    v_states text[] := array_fill(''::text, array[cardinality(p_key)]);
    v_waits bigint[] := array_fill(0::bigint, array[cardinality(p_key)]);
    v_live boolean;
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());

    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_key, p_verdict, p_by, p_reason, p_turn, p_result, p_evidence, p_forced,
                      p_retryable) with ordinality
               as s (tenant, task, key, verdict, who, reason, turn, result, evidence, forced, retryable, place)
         order by s.place
    loop
        -- What a person says of an effect counts once it had to be visible; the settler's rules are its own.
        select o.state, o.attempt, o.turn, o.business_key, o.effect,
               case when v_item.who like 'person:%' then o.visible_at else o.deadline_at end as open_until
          into v_op
          from outlast.operations o
         where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.key
           for no key update;
        if not found then
            v_kinds[v_item.place] := 'not_found';
            continue;
        end if;
        v_states[v_item.place] := v_op.state;
        if v_op.state <> 'unknown' or v_item.turn <> v_op.turn then
            v_kinds[v_item.place] := 'conflict';
            continue;
        end if;
        if v_item.verdict <> 'happened' and not v_item.forced and v_now < v_op.open_until then
            v_kinds[v_item.place] := 'too_early';
            v_waits[v_item.place] := v_op.open_until - v_now;
            continue;
        end if;
        if v_item.verdict <> 'happened' and v_item.who not like 'person:%'
           and outlast.word_stands(v_item.tenant, v_item.task, v_item.key, v_op.attempt, v_op.effect)
        then
            v_kinds[v_item.place] := 'conflict';
            continue;
        end if;
        select t.state, t.last_event into v_head
          from outlast.tasks t
         where t.tenant = v_item.tenant and t.id = v_item.task;
        v_live := v_head.state in ('queued', 'running', 'waiting');

        v_state := case v_item.verdict when 'happened' then 'succeeded' when 'did_not_happen' then 'failed'
                                       when 'send_again' then 'unknown' end;
        v_kinds[v_item.place] := 'settled';
        v_states[v_item.place] := v_state;
        update outlast.operations o
           set state = v_state,
               result = case when v_state = 'succeeded' then v_item.result end,
               -- What is to be sent again keeps why it is unknown: its earlier attempt may have acted.
               error = case v_state
                       when 'failed' then '{"code":"did_not_happen","message":' || to_json(v_item.reason)
                                          || ',"retryable":' || v_item.retryable || '}'
                       when 'unknown' then o.error end,
               turn = o.turn + 1,
               ended_at = case when v_state <> 'unknown' then v_now end,
               settled_by = v_item.who
         where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.key and o.turn = v_op.turn
           and o.state = 'unknown';
        if v_state = 'unknown' then
            -- It stays in the queue until the intent of the resend; nobody asks any more. A task that is over sends
            -- nothing.
            update outlast.unsettled u
               set resend = v_live, ask_at = case when not v_live then v_now end, claimed_until = 0
             where u.tenant = v_item.tenant and u.task = v_item.task and u.key = v_item.key;
        else
            delete from outlast.unsettled u
             where u.tenant = v_item.tenant and u.task = v_item.task and u.key = v_item.key;
        end if;
        perform outlast.add_evidence(v_item.tenant, v_item.task, v_item.key, v_op.attempt,
            case when v_item.who like 'person:%' then 'person' else 'answered' end,
            '{"verdict":' || to_json(v_item.verdict) || ',"by":' || to_json(v_item.who)
            || ',"reason":' || to_json(v_item.reason) || ',"forced":' || v_item.forced
            || ',"evidence":' || v_item.evidence || '}', null, v_now);
        if v_op.business_key is not null then
            perform outlast.settle_keys(array[v_item.tenant], array[v_item.task], array[v_item.key], array[v_state],
                                        v_now);
        end if;
        if v_item.who like 'person:%' then
            insert into outlast.audit (tenant, at, who, what, subject, reason, data)
            values (v_item.tenant, v_now, v_item.who, 'settle:' || v_item.verdict, v_item.task || ':' || v_item.key,
                    v_item.reason, v_item.evidence);
            -- What a person settles is not what was decided before, nor what nobody decided in time.
            update outlast.approvals a
               set spent = true
             where a.tenant = v_item.tenant and a.task = v_item.task and a.key = v_item.key
               and a.state in ('used', 'rejected', 'expired') and not a.spent;
        end if;

        -- The end of a task stays its last event. A wait for several things bears the name of one of them, so this may
        -- be what it waits for whatever its name; only an operator's wait is nobody else's to end.
        if v_live then
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            values (v_item.tenant, v_item.task, v_head.last_event + 1, 'operation.settled', 0,
                    '{"operation":' || to_json(v_item.key) || ',"verdict":' || to_json(v_item.verdict)
                    || ',"by":' || to_json(v_item.who) || '}', v_now);
            perform outlast.raise_facts(v_item.tenant, v_item.task, 1, v_head.last_event + 1, false, v_now);
        end if;
    end loop;

    perform outlast.count_settled(array_agg(s.tenant), array_agg(s.task), array_agg(s.key), array_agg(s.state))
       from unnest(p_tenant, p_task, p_key, v_states, v_kinds) as s (tenant, task, key, state, kind)
      where s.kind = 'settled';
    return query select s.* from unnest(v_kinds, v_states, v_waits) as s (kind, state, wait_us);
end
$$;

-- Append one piece of evidence; the caller holds the head, so the numbers are dense.
create function outlast.add_evidence(
    p_tenant text, p_task text, p_key text, p_attempt integer, p_source text, p_data text, p_says text, p_now bigint
) returns void language sql volatile as $$
    insert into outlast.evidence (tenant, task, key, number, attempt, source, data, at, says)
    select p_tenant, p_task, p_key, coalesce(max(e.number), 0) + 1, p_attempt, p_source, p_data, p_now, p_says
      from outlast.evidence e
     where e.tenant = p_tenant and e.task = p_task and e.key = p_key
$$;

-- Append evidence without a lease, in the order given. What it says may contradict what was settled, or that it is to be
-- sent again: then the operation is unknown again, for a person. Of one that is unknown it makes the next question due. Answers whether it may have done
-- either.
create function outlast.note(
    p_tenant text[], p_task text[], p_key text[], p_attempt integer[], p_source text[], p_data text[], p_says text[],
    p_now bigint
) returns boolean language plpgsql volatile as $$
declare
    v_now bigint;
    v_item record;
    v_told boolean := false;
    v_other record;
    v_why text;
    v_tenants text[];
    v_tools text[];
    v_values text[];
begin
    perform outlast.lock_heads(p_tenant, p_task);
    if exists (select from unnest(p_says) as s (says) where s.says in ('happened', 'did_not_happen')) then
        select r.r_tenant, r.r_tool, r.r_value into v_tenants, v_tools, v_values
          from outlast.reserve_keys(p_tenant, p_task, p_key) r;
    end if;
    v_now := coalesce(p_now, outlast.clock_us());
    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_key, p_attempt, p_source, p_data, p_says) with ordinality
               as s (tenant, task, key, attempt, source, data, says, place)
         order by s.place
    loop
        perform outlast.add_evidence(v_item.tenant, v_item.task, v_item.key, v_item.attempt, v_item.source,
                                     v_item.data, v_item.says, v_now);
        continue when v_item.says is null;
        if v_item.says = 'over' then
            -- Nothing is known of it now either, but its sender is gone: whoever asks may conclude more.
            update outlast.unsettled u
               set sender_gone = true,
                   ask_at = case when u.resend then u.ask_at else least(coalesce(u.ask_at, v_now), v_now) end
              from outlast.operations o
             where u.tenant = v_item.tenant and u.task = v_item.task and u.key = v_item.key
               and o.tenant = u.tenant and o.task = u.task and o.key = u.key and o.attempt = v_item.attempt;
            v_told := v_told or found;
            continue;
        end if;
        update outlast.operations o
           set state = 'unknown', ended_at = null, lost = false
         where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.key
           -- What changes nothing needs nobody's look, whether it happened or not.
           and o.effect is distinct from 'read'
           -- All attempts are one call, under one key: whichever happened, it has not failed, and is not sent again.
           and ((v_item.says = 'happened' and v_item.attempt <= o.attempt
                 and (o.state = 'failed' or (o.state in ('planned', 'approved') and v_item.attempt > 0)))
                or (v_item.says = 'did_not_happen' and v_item.attempt = o.attempt and o.state = 'succeeded'
                    and o.settled_by is not null));
        if found then
            v_why := 'late evidence contradicts what was settled';
            select d.value, d.task || ':' || d.key as owner, d.state into v_other
              from outlast.doubt_key(v_item.tenant, v_item.task, v_item.key) d;
            if found then
                -- Also as evidence: why it waits is written anew by whoever looks at it.
                v_why := v_why || '; ' || v_other.owner || ' has its business key';
                perform outlast.add_evidence(
                    v_item.tenant, v_item.task, v_item.key, v_item.attempt, 'key',
                    '{"business_key":' || to_json(v_other.value) || ',"operation":' || to_json(v_other.owner)
                    || ',"state":' || to_json(v_other.state) || '}', null, v_now);
            end if;
            insert into outlast.unsettled (tenant, task, key, since, sender_gone, why)
            values (v_item.tenant, v_item.task, v_item.key, v_now,
                    outlast.said_over(v_item.tenant, v_item.task, v_item.key, v_item.attempt), v_why);
            -- The end of a task stays its last event.
            with told as (
                update outlast.tasks t
                   set last_event = t.last_event + 1
                 where t.tenant = v_item.tenant and t.id = v_item.task and t.state in ('queued', 'running', 'waiting')
                returning t.last_event)
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            select v_item.tenant, v_item.task, t.last_event, 'operation.contradicted', 0,
                   '{"operation":' || to_json(v_item.key) || ',"says":' || to_json(v_item.says) || '}', v_now
              from told t;
            v_told := true;
        else
            -- Whoever was to send it again under this turn does not.
            update outlast.operations o
               set turn = o.turn + 1
             where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.key and o.state = 'unknown'
               and exists (select from outlast.unsettled u
                            where u.tenant = o.tenant and u.task = o.task and u.key = o.key and u.resend);
            update outlast.unsettled u
               set ask_at = v_now, resend = false
             where u.tenant = v_item.tenant and u.task = v_item.task and u.key = v_item.key
               and (u.ask_at is null or u.ask_at > v_now);
            v_told := v_told or found;
        end if;
    end loop;
    if v_tenants is not null then
        perform outlast.release_keys(v_tenants, v_tools, v_values);
    end if;
    return v_told;
end
$$;

-- Take unknown operations that are due, that nobody works on, and whose task has no lease: a row each, as it then is.
create function outlast.claim_open(p_session text, p_tools text[], p_limit integer, p_lease bigint, p_now bigint)
returns table (
    tenant text, task text, key text, "position" integer, kind text, name text, state text, request text, decision text,
    effect text, attempt integer, turn integer, epoch bigint, arguments text, result text, error text, created_at bigint,
    intent_at bigint, first_intent_at bigint, deadline_at bigint, due_at bigint, ended_at bigint, settled_by text,
    business_key text, idempotency_key text, usage text, visible_at bigint, trace text, task_ended boolean
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_lost bigint;
    v_tenant text[];
    v_task text[];
    v_key text[];
begin
    select s.lost_at into v_lost from outlast.sessions s where s.id = p_session for key share;
    if not found or v_lost is not null then
        return;
    end if;

    -- Lock the heads of what seems due. The rows are walked in the order of their index, one head and operation at a
    -- time: nothing here may be looked for by a scan of the ledger.
    v_now := coalesce(p_now, outlast.clock_us());
    select array_agg(d.tenant), array_agg(d.task), array_agg(d.key)
      into v_tenant, v_task, v_key
      from (select u.tenant, u.task, u.key
              from outlast.unsettled u
             cross join lateral (
                   select o.name
                     from outlast.operations o
                    where o.tenant = u.tenant and o.task = u.task and o.key = u.key and o.name = any(p_tools)
                    limit 1) o
             cross join lateral (
                   select t.id
                     from outlast.tasks t
                    where t.tenant = u.tenant and t.id = u.task and t.state <> 'running'
                      for no key update of t skip locked) t
             where u.ask_at <= v_now and u.claimed_until <= v_now and not u.resend
             order by u.ask_at, u.tenant, u.task, u.key
             limit p_limit) d;
    if v_key is null then
        return;
    end if;

    -- Look again, and take them by their names.
    v_now := coalesce(p_now, outlast.clock_us());
    return query
    with seen as materialized (
        select x.place, x.tenant, x.task, x.key, t.state in ('succeeded', 'failed', 'cancelled') as task_ended
          from unnest(v_tenant, v_task, v_key) with ordinality as x (tenant, task, key, place)
         cross join lateral (
               select t.state
                 from outlast.tasks t
                where t.tenant = x.tenant and t.id = x.task and t.state <> 'running'
                limit 1) t
    ), taken as (
        update outlast.unsettled u
           set claimed_until = v_now + p_lease, claimed_by = p_session
          from seen x
         where u.tenant = x.tenant and u.task = x.task and u.key = x.key
           and coalesce(u.ask_at <= v_now, false) and u.claimed_until <= v_now and not u.resend
        returning x.place, u.tenant, u.task, u.key, x.task_ended
    ), turned as (
        update outlast.operations o
           set turn = o.turn + 1
          from taken x
         where o.tenant = x.tenant and o.task = x.task and o.key = x.key and o.state = 'unknown'
        returning o.*, x.task_ended, x.place
    )
    select o.tenant, o.task, o.key::text, o.position, o.kind::text, o.name, o.state::text, o.request, o.decision,
           o.effect::text, o.attempt, o.turn, o.epoch, o.arguments, o.result, o.error, o.created_at, o.intent_at,
           o.first_intent_at, o.deadline_at, o.due_at, o.ended_at, o.settled_by, o.business_key, o.idempotency_key,
           o.usage, o.visible_at, i.trace, o.task_ended
      from turned o
      join outlast.inputs i on i.tenant = o.tenant and i.task = o.task
     order by o.place;
end
$$;

-- Put operations back under the turn that was taken of them; answers for each, in order, whether it was still that
-- turn's. A turn puts back once: its repeat changes nothing. Evidence that came while it was looked at was written under
-- the head's lock, so that it is seen here; it is considered at once. A wait that its provider asked for is kept for
-- everybody.
create function outlast.postpone(
    p_tenant text[], p_task text[], p_key text[], p_turn integer[], p_ask_in bigint[], p_unusable boolean[],
    p_why text[], p_seen integer[], p_held boolean[], p_provider text[], p_wait bigint[], p_now bigint
) returns table (theirs boolean) language plpgsql volatile as $$
declare
    v_now bigint;
    v_item record;
    v_waits bigint[] := p_wait;
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());
    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_key, p_turn, p_ask_in, p_unusable, p_why, p_seen, p_held, p_wait)
               with ordinality as s (tenant, task, key, turn, ask_in, unusable, why, seen, held, wait, place)
         order by s.place
    loop
        perform from outlast.operations o
          where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.key and o.turn = v_item.turn
            and o.state = 'unknown'
            for no key update;
        theirs := found;
        return next;
        if not theirs then
            v_waits[v_item.place] := null;
            continue;
        end if;
        update outlast.unsettled u
           set asked = u.asked + case when v_item.held then 0 else 1 end,
               unusable = case when v_item.held then u.unusable when v_item.unusable then u.unusable + 1 else 0 end,
               ask_at = case when exists (
                            select from outlast.evidence e
                             where e.tenant = v_item.tenant and e.task = v_item.task and e.key = v_item.key
                               and e.number > v_item.seen and e.says is not null) then v_now
                            when v_item.ask_in is not null
                            then v_now + greatest(v_item.ask_in, v_item.wait) end,
               claimed_until = 0, claimed_by = 'turn ' || v_item.turn, why = v_item.why, resend = false
         where u.tenant = v_item.tenant and u.task = v_item.task and u.key = v_item.key
           and u.claimed_by <> 'turn ' || v_item.turn;
        if not found then
            v_waits[v_item.place] := null;
        end if;
    end loop;
    -- Most ask for none.
    if array_remove(v_waits, null) <> '{}' then
        perform outlast.keep_waits(
            p_tenant, p_provider,
            array(select v_now + s.wait from unnest(v_waits) with ordinality as s (wait, place) order by s.place));
    end if;
end
$$;
