-- Forks and outside sessions, as a flush writes them: calls taken over, sessions attached.
--
-- Lock order: flush holds the head of each task; then rows of that task; then, behind business keys, outside sessions in
-- the order of their names. The head of whoever holds a session is read and not locked.
-- What is fenced: only entries of heads that compared equal (p_ok) are written.

-- Take calls over that were made behind a fork, in one wave of a flush: as unknown, under their own keys and with their
-- next turns. Answers silent for each entry that there is nothing for, or whose key the ledger has.
create function outlast.take_over(
    p_rare json, p_wave integer, p_ok boolean[], p_epoch bigint[], p_now bigint
) returns table (place bigint, what text, kind text, data text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_item record;
begin
    for v_item in
        select x.*
          from json_to_recordset(p_rare -> 'adopts')
               as x (place bigint, wave integer, tenant text, task text, key text, position integer)
         where x.wave = p_wave and p_ok[x.place >> 20]
         order by x.place
    loop
        insert into outlast.operations (tenant, task, key, position, kind, name, state, request, decision, effect,
               attempt, turn, epoch, arguments, created_at, intent_at, first_intent_at, deadline_at, visible_at,
               idempotency_key)
        select i.tenant, i.task, i.key, v_item.position, i.kind, i.name, 'unknown', i.request, i.decision, i.effect,
               i.attempt, i.turn + 1, p_epoch[v_item.place >> 20], i.arguments, p_now, i.intent_at, i.first_intent_at,
               i.deadline_at, i.visible_at, i.idempotency_key
          from outlast.issued i
         where i.tenant = v_item.tenant and i.task = v_item.task and i.key = v_item.key
        on conflict do nothing;
        if found then
            insert into outlast.unsettled (tenant, task, key, since, ask_at, sender_gone)
            select i.tenant, i.task, i.key, p_now, p_now,
                   i.state in ('succeeded', 'failed') or outlast.said_over(i.tenant, i.task, i.key, i.attempt)
              from outlast.issued i
             where i.tenant = v_item.tenant and i.task = v_item.task and i.key = v_item.key
            on conflict do nothing;
        else
            return query select v_item.place, 'silent', null::text, null::text;
        end if;
    end loop;
end
$$;

-- Attach outside sessions; answers for each that another live task holds the name of the refusal. The task's name in it
-- is written in hexadecimal digits, so that it says nothing to whoever reads verdicts. p_end_*: the endings of the same
-- flush, which are written later: who ends before an entry holds nothing any more.
create function outlast.attach_sessions(
    p_rare json, p_tenant text[], p_task text[], p_ok boolean[], p_epoch bigint[], p_end_place bigint[],
    p_end_state text[], p_now bigint
) returns table (place bigint, name text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_item record;
    v_holder text;
begin
    for v_item in
        select x.*
          from json_to_recordset(p_rare -> 'attaches')
               as x (place bigint, tenant text, task text, provider text, session text, run text)
         where p_ok[x.place >> 20]
         order by x.tenant collate "C", x.provider collate "C", x.session collate "C", x.run collate "C", x.place
    loop
        insert into outlast.outside (tenant, provider, session, run, task, epoch, attached_at)
        values (v_item.tenant, v_item.provider, v_item.session, v_item.run, v_item.task,
                p_epoch[v_item.place >> 20], p_now)
        on conflict do nothing;
        continue when found;
        select o.task into v_holder
          from outlast.outside o
         where o.tenant = v_item.tenant and o.provider = v_item.provider and o.session = v_item.session
           and o.run = v_item.run
           for no key update;
        continue when v_holder = v_item.task;
        if exists (select from outlast.tasks t
                    where t.tenant = v_item.tenant and t.id = v_holder and t.state in ('queued', 'running', 'waiting'))
           and not exists (select from unnest(p_end_place, p_end_state) as x (place, state)
                            where p_tenant[x.place >> 20] = v_item.tenant and p_task[x.place >> 20] = v_holder
                              and x.place < v_item.place and x.state in ('succeeded', 'failed', 'cancelled')
                              and p_ok[x.place >> 20])
        then
            return query select v_item.place, 'taken ' || encode(convert_to(v_holder, 'UTF8'), 'hex');
        else
            update outlast.outside o
               set task = v_item.task, epoch = p_epoch[v_item.place >> 20], attached_at = p_now, last_event = null,
                   last_event_at = null
             where o.tenant = v_item.tenant and o.provider = v_item.provider and o.session = v_item.session
               and o.run = v_item.run;
        end if;
    end loop;
end
$$;
