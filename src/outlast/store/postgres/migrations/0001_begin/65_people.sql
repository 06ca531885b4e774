-- post, cancel, news, deliver: facts that reach a task from outside.
--
-- Lock order: heads in the order of their names, each waited for (deliver: its posts and what switches held with skip
-- locked before); then rows of those tasks only. news locks leases with skip locked and nothing else, so that nobody
-- waits for it while it waits.
-- What is fenced: nothing needs a lease; what becomes of a task is judged by the state that its locked head has.

-- Put signals into inboxes, in the order given; answers one row for each. A row's number is the head's facts, which it
-- has raised.
create function outlast.post(
    p_tenant text[], p_task text[], p_name text[], p_data text[], p_digest text[], p_key text[], p_most integer,
    p_now bigint, p_operation text[] default null
) returns table (kind text, number bigint, state text, woken boolean, told boolean) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_item record;
    v_head record;
    v_used record;
    v_wait text;
    v_raised record;
    v_there boolean;
    v_live boolean;
    v_more integer;
    v_last bigint;
    v_room bigint;
    v_counted boolean;
    v_woken boolean := false;
    v_told boolean := false;
    v_kinds text[] := array_fill(null::text, array[cardinality(p_task)]);
    v_numbers bigint[] := array_fill(0::bigint, array[cardinality(p_task)]);
    v_states text[] := array_fill(''::text, array[cardinality(p_task)]);
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());

    -- Task by task, and of each task one by one; the head is written once.
    for v_item in
        select s.*, row_number() over task = 1 as first, lead(s.place) over task is null as last
          from unnest(p_tenant, p_task, p_name, p_data, p_digest, p_key, p_operation) with ordinality
               as s (tenant, task, name, data, digest, key, operation, place)
        window task as (partition by s.tenant collate "C", s.task collate "C" order by s.place)
         order by s.tenant collate "C", s.task collate "C", s.place
    loop
        if v_item.first then
            select t.state, t.facts, t.last_event into v_head
              from outlast.tasks t
             where t.tenant = v_item.tenant and t.id = v_item.task;
            v_there := found;
            v_live := found and v_head.state in ('queued', 'running', 'waiting');
            v_more := 0;
            v_last := v_head.last_event;
            v_room := p_most - v_head.facts;
            v_counted := false;
        end if;
        if not v_there then
            v_kinds[v_item.place] := 'not_found';
            continue;
        end if;

        -- The one wait that it can answer, where that is over; whoever writes that holds the head.
        v_wait := null;
        if v_item.operation is not null then
            select o.state into v_wait
              from outlast.operations o
             where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.operation
               and (o.state in ('succeeded', 'failed') or o.due_at < v_now);
        end if;

        -- A key tells a repeat for as long as the task is kept.
        select b.number, b.digest into v_used
          from outlast.inbox b
         where b.tenant = v_item.tenant and b.task = v_item.task and b.name = v_item.name and b.key = v_item.key;
        if found then
            v_kinds[v_item.place] := case when v_used.digest = v_item.digest then 'replayed' else 'conflict' end;
            v_numbers[v_item.place] := v_used.number;
        elsif not v_live then
            v_kinds[v_item.place] := 'ended';
            v_states[v_item.place] := v_head.state;
        elsif v_wait is not null then
            v_kinds[v_item.place] := 'over';
            v_states[v_item.place] := v_wait;
        else
            -- Every row has raised the facts, so that there is room for as many as these are short of the bound; only
            -- beyond that they are counted.
            if v_room <= 0 and not v_counted then
                v_counted := true;
                select p_most - count(*) into v_room
                  from (select from outlast.inbox b
                         where b.tenant = v_item.tenant and b.task = v_item.task and b.taken_by is null
                           and b.kind = 'signal'
                         limit p_most) b;
            end if;
            if v_room <= 0 then
                v_kinds[v_item.place] := 'full';
            else
                v_room := v_room - 1;
                v_more := v_more + 1;
                v_last := v_last + 1;
                v_kinds[v_item.place] := 'accepted';
                v_numbers[v_item.place] := v_head.facts + v_more;
                insert into outlast.inbox (tenant, task, number, kind, name, key, digest, data, at)
                values (v_item.tenant, v_item.task, v_head.facts + v_more, 'signal', v_item.name, v_item.key,
                        v_item.digest, v_item.data, v_now);
                insert into outlast.events (tenant, task, number, kind, epoch, data, at)
                values (v_item.tenant, v_item.task, v_last, 'signal.received', 0,
                        '{"name":' || to_json(v_item.name) || ',"number":' || v_head.facts + v_more || '}', v_now);
            end if;
        end if;
        if v_item.last and v_more > 0 then
            select r.woken, r.told into v_raised
              from outlast.raise_facts(v_item.tenant, v_item.task, v_more, v_last, true, v_now) r;
            v_woken := v_woken or v_raised.woken;
            v_told := v_told or v_raised.told;
        end if;
    end loop;
    return query select s.*, v_woken, v_told from unnest(v_kinds, v_numbers, v_states) as s (kind, number, state);
end
$$;

-- Cancel tasks, in the order given; answers one row for each.
create function outlast.cancel(p_tenant text[], p_task text[], p_by text[], p_reason text[], p_undo boolean[], p_now bigint)
returns table (kind text, state text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_item record;
    v_cancel record;
    v_lanes bigint[] := '{}';
    v_tenants text[] := '{}';
    v_tasks text[] := '{}';
begin
    perform outlast.lock_heads(p_tenant, p_task);
    v_now := coalesce(p_now, outlast.clock_us());
    for v_item in
        select s.*
          from unnest(p_tenant, p_task, p_by, p_reason, p_undo) with ordinality
               as s (tenant, task, who, reason, undo, place)
         order by s.place
    loop
        select c.kind, c.state, c.lane into v_cancel
          from outlast.cancel_head(v_item.tenant, v_item.task, v_item.who, v_item.reason, v_item.undo, v_now) c;
        if v_cancel.lane is not null then
            v_lanes := v_lanes || v_cancel.lane;
            v_tenants := v_tenants || v_item.tenant;
            v_tasks := v_tasks || v_item.task;
        end if;
        return query select v_cancel.kind, v_cancel.state;
    end loop;
    if v_lanes <> '{}' then
        perform outlast.forget_entries(v_lanes, v_tenants, v_tasks);
    end if;
end
$$;

-- Forget the news that a worker has heard, and answer what there is more. What was posted in between is newer than what
-- was heard, and stays. A lease that somebody is writing to is left: it will be told again.
create function outlast.news(p_session text, p_tenant text[], p_task text[], p_facts bigint[])
returns table (tenant text, task text, facts bigint, cancelling boolean, undoing boolean) language plpgsql volatile as $$
#variable_conflict use_column
begin
    if p_task <> '{}' then
        update outlast.leases l
           set news = 0
          from (select l.tenant, l.task
                  from unnest(p_tenant, p_task, p_facts) as h (tenant, task, facts)
                  join outlast.leases l on l.tenant = h.tenant and l.task = h.task
                 where l.session = p_session and l.news between 1 and h.facts
                   for no key update of l skip locked) h
         where l.tenant = h.tenant and l.task = h.task;
    end if;
    return query
    select l.tenant, l.task, l.news, t.cancelling, t.undoing
      from outlast.leases l
      join outlast.tasks t on t.tenant = l.tenant and t.id = l.task
     where l.session = p_session and l.news > 0
     order by l.tenant, l.task;
end
$$;

-- Take tasks that a switch has held back which stands no more. There are few switches, so they are gone through by steps
-- over the index, and those that stand cost a look each, however many tasks they hold.
create function outlast.take_released(p_limit integer)
returns table (by_tenant text, scope text, tenant text, task text) language sql volatile as $$
    with recursive switches as (
        (select h.by_tenant, h.scope
           from outlast.held_tasks h
          order by h.by_tenant, h.scope
          limit 1)
        union all
        select n.by_tenant, n.scope
          from switches s
         cross join lateral (
               select h.by_tenant, h.scope
                 from outlast.held_tasks h
                where (h.by_tenant, h.scope) > (s.by_tenant, s.scope)
                order by h.by_tenant, h.scope
                limit 1) n)
    select h.by_tenant, h.scope, h.tenant, h.task
      from switches s
     cross join lateral (
           select h.by_tenant, h.scope, h.tenant, h.task
             from outlast.held_tasks h
            where h.by_tenant = s.by_tenant and h.scope = s.scope
            order by h.tenant, h.task
            limit p_limit
              for update skip locked) h
     where not exists (select from outlast.pauses p where p.tenant = s.by_tenant and p.scope = s.scope)
     limit p_limit
$$;

-- Deliver what ends of tasks and of switches have left, and delete it; answers rows of a kind each: told, cancelled; more.
create function outlast.deliver(p_limit integer, p_now bigint)
returns table (kind text, tenant text, task text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_tenant text[];
    v_task text[];
    v_seq bigint[];
    v_at tid[];
    v_by text[];
    v_scope text[];
    v_held_tenant text[];
    v_held_task text[];
    v_one record;
    v_head record;
    v_cancel record;
    v_ends integer;
    v_more boolean;
    v_lanes bigint[] := '{}';
    v_tenants text[] := '{}';
    v_tasks text[] := '{}';
begin
    select array_agg(p.tenant), array_agg(p.task), array_agg(p.seq), array_agg(p.at)
      into v_tenant, v_task, v_seq, v_at
      from (select p.tenant, p.task, p.seq, p.ctid as at
              from outlast.posts p
             order by p.tenant, p.task, p.seq
             limit p_limit
               for update skip locked) p;
    select array_agg(h.by_tenant), array_agg(h.scope), array_agg(h.tenant), array_agg(h.task)
      into v_by, v_scope, v_held_tenant, v_held_task
      from outlast.take_released(p_limit - coalesce(cardinality(v_seq), 0)) h;
    if v_seq is null and v_by is null then
        return;
    end if;
    v_more := coalesce(cardinality(v_seq), 0) + coalesce(cardinality(v_by), 0) >= p_limit;
    perform outlast.lock_heads(v_tenant || v_held_tenant, v_task || v_held_task);
    v_now := coalesce(p_now, outlast.clock_us());

    for v_one in
        select x.tenant collate "C" as tenant, x.task collate "C" as task, bool_or(x.held) as held
          from (select p.tenant, p.task, false as held from unnest(v_tenant, v_task) as p (tenant, task)
                 union all
                select h.tenant, h.task, true from unnest(v_held_tenant, v_held_task) as h (tenant, task)) x
         group by 1, 2
         order by 1, 2
    loop
        select t.state, t.facts, t.last_event into v_head
          from outlast.tasks t
         where t.tenant = v_one.tenant and t.id = v_one.task;
        -- One that has failed or was cancelled may be tried again, and then has to know.
        continue when not found or v_head.state = 'succeeded';

        -- The ends of its children, but for those that it has on record: its worker has heard of them by itself. That
        -- nothing holds it back any more is a fact of its own.
        with ends as (
            insert into outlast.inbox (tenant, task, number, kind, name, digest, data, at)
            select p.tenant, p.task, v_head.facts + row_number() over (order by p.seq), 'child', p.name, '', p.data,
                   v_now
              from outlast.posts p
             where p.tenant = v_one.tenant and p.task = v_one.task and p.seq = any(v_seq) and p.kind = 'child'
               and not exists (select from outlast.operations o
                                where o.tenant = p.tenant and o.task = p.task and o.key = p.name
                                  and o.state in ('succeeded', 'failed'))
            returning 1)
        select count(*) + (v_one.held and v_head.state in ('queued', 'running', 'waiting'))::integer into v_ends
          from ends;
        if v_ends > 0 then
            perform outlast.raise_facts(v_one.tenant, v_one.task, v_ends, v_head.last_event, true, v_now);
        end if;
        continue when v_head.state not in ('queued', 'running', 'waiting');
        if v_ends > 0 then
            return query select 'told', v_one.tenant, v_one.task;
        end if;

        -- The end of its parent.
        continue when not exists (select from outlast.posts p
                                   where p.tenant = v_one.tenant and p.task = v_one.task and p.seq = any(v_seq)
                                     and p.kind = 'cancel');
        select c.kind, c.done, c.lane into v_cancel
          from outlast.cancel_head(v_one.tenant, v_one.task, 'parent', 'its parent ended', false, v_now) c;
        if v_cancel.lane is not null then
            v_lanes := v_lanes || v_cancel.lane;
            v_tenants := v_tenants || v_one.tenant;
            v_tasks := v_tasks || v_one.task;
        end if;
        v_more := v_more or v_cancel.kind = 'cancelled';
        if v_cancel.done then
            return query select 'cancelled', v_one.tenant, v_one.task;
        end if;
    end loop;

    delete from outlast.posts p using unnest(v_at) as x (at) where p.ctid = x.at;
    delete from outlast.held_tasks h
     using unnest(v_by, v_scope, v_held_tenant, v_held_task) as x (by_tenant, scope, tenant, task)
     where h.by_tenant = x.by_tenant and h.scope = x.scope and h.tenant = x.tenant and h.task = x.task;
    if v_lanes <> '{}' then
        perform outlast.forget_entries(v_lanes, v_tenants, v_tasks);
    end if;
    -- What did not fit, and what the ends above have left.
    if v_more and (exists (select from outlast.posts) or exists (select from outlast.held_tasks)) then
        return query select 'more', null::text, null::text;
    end if;
end
$$;
