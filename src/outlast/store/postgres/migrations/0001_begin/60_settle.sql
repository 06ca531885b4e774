-- settle, note: facts from outside, with or without a lease.
--
-- Lock order: heads by (tenant, task), each waited for; then rows of those tasks only.
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
    p_result text[], p_evidence text[], p_forced boolean[], p_now bigint
) returns table (kind text, state text, wait_us bigint, woken boolean) language plpgsql volatile as $$
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
    v_woken boolean[] := array_fill(false, array[cardinality(p_key)]);
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());

    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_key, p_verdict, p_by, p_reason, p_turn, p_result, p_evidence, p_forced)
               with ordinality
               as s (tenant, task, key, verdict, who, reason, turn, result, evidence, forced, place)
         order by s.place
    loop
        select o.state, o.attempt, o.turn, o.deadline_at into v_op
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
        if v_item.verdict <> 'happened' and not v_item.forced and v_now < v_op.deadline_at then
            v_kinds[v_item.place] := 'too_early';
            v_waits[v_item.place] := v_op.deadline_at - v_now;
            continue;
        end if;

        v_state := case v_item.verdict when 'happened' then 'succeeded' when 'did_not_happen' then 'failed'
                                       when 'send_again' then 'planned' end;
        v_kinds[v_item.place] := 'settled';
        v_states[v_item.place] := v_state;
        update outlast.operations o
           set state = v_state,
               result = case when v_state = 'succeeded' then v_item.result end,
               error = case when v_state = 'failed'
                       then '{"code":"did_not_happen","message":' || to_json(v_item.reason) || '}' end,
               turn = o.turn + 1,
               ended_at = case when v_state <> 'planned' then v_now end,
               settled_by = v_item.who
         where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.key and o.turn = v_op.turn
           and o.state = 'unknown';
        delete from outlast.unsettled u
         where u.tenant = v_item.tenant and u.task = v_item.task and u.key = v_item.key;
        perform outlast.add_evidence(v_item.tenant, v_item.task, v_item.key, v_op.attempt,
            case when v_item.who like 'person:%' then 'person' else 'answered' end,
            '{"verdict":' || to_json(v_item.verdict) || ',"by":' || to_json(v_item.who)
            || ',"reason":' || to_json(v_item.reason) || ',"forced":' || v_item.forced
            || ',"evidence":' || v_item.evidence || '}', v_now);

        -- The end of a task stays its last event. A wait for several things bears the name of one of them, so this may
        -- be what it waits for whatever its name; only an operator's wait is nobody else's to end.
        select t.state, t.reason, t.last_event, t.lane into v_head
          from outlast.tasks t
         where t.tenant = v_item.tenant and t.id = v_item.task;
        if v_head.state in ('queued', 'running', 'waiting') then
            v_woken[v_item.place] := v_head.state = 'waiting' and v_head.reason <> 'operator';
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            values (v_item.tenant, v_item.task, v_head.last_event + 1, 'operation.settled', 0,
                    '{"operation":' || to_json(v_item.key) || ',"verdict":' || to_json(v_item.verdict)
                    || ',"by":' || to_json(v_item.who) || '}', v_now);
            if v_woken[v_item.place] then
                insert into outlast.queue (lane, tenant, task) values (v_head.lane, v_item.tenant, v_item.task);
                delete from outlast.timers m
                 where m.tenant = v_item.tenant and m.task = v_item.task and m.kind = 'wake';
            end if;
            update outlast.tasks t
               set facts = t.facts + 1, last_event = t.last_event + 1,
                   state = case when v_woken[v_item.place] then 'queued' else t.state end,
                   reason = case when v_woken[v_item.place] then null else t.reason end
             where t.tenant = v_item.tenant and t.id = v_item.task;
        end if;
    end loop;

    return query select s.* from unnest(v_kinds, v_states, v_waits, v_woken) as s (kind, state, wait_us, woken);
end
$$;

-- Append one piece of evidence; the caller holds the head, so the numbers are dense.
create function outlast.add_evidence(
    p_tenant text, p_task text, p_key text, p_attempt integer, p_source text, p_data text, p_now bigint
) returns void language sql volatile as $$
    insert into outlast.evidence (tenant, task, key, number, attempt, source, data, at)
    select p_tenant, p_task, p_key, coalesce(max(e.number), 0) + 1, p_attempt, p_source, p_data, p_now
      from outlast.evidence e
     where e.tenant = p_tenant and e.task = p_task and e.key = p_key
$$;

-- Append evidence without a lease, in the order given.
create function outlast.note(
    p_tenant text[], p_task text[], p_key text[], p_attempt integer[], p_source text[], p_data text[], p_now bigint
) returns void language plpgsql volatile as $$
begin
    perform outlast.lock_heads(p_tenant, p_task);
    perform outlast.add_evidence(s.tenant, s.task, s.key, s.attempt, s.source, s.data,
                                 coalesce(p_now, outlast.clock_us()))
       from (select s.*
               from unnest(p_tenant, p_task, p_key, p_attempt, p_source, p_data) with ordinality
                    as s (tenant, task, key, attempt, source, data, place)
              order by s.place) s;
end
$$;
