-- submit: input, head, queue entry or timer, first event and outbox row of each task, in one transaction.
--
-- Lock order: lanes before and outside (ensure_lanes, a call of its own); here the heads of parents in the order of their
-- names, then keys in sorted order, then rows that are new and nobody else can hold.
-- What is fenced: a child is new, and on its parent's record, only under the epoch of its parent's lease, compared under
-- the parent's lock.

-- This database's clock, in microseconds; volatile, so that a statement after a lock reads it after the lock.
create function outlast.clock_us() returns bigint language sql volatile parallel safe as $$
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint
$$;

-- Find lanes by their five names, and make those that do not exist. Called outside any other transaction: a lane that
-- an open transaction had made would hold up everybody who needs it.
create function outlast.ensure_lanes(
    p_pool text[], p_agent text[], p_version text[], p_tenant text[], p_priority integer[]
) returns table (item bigint, lane bigint) language plpgsql volatile as $$
#variable_conflict use_column
begin
    insert into outlast.lanes (pool, agent, version, tenant, priority)
    select w.pool, w.agent, w.version, w.tenant, w.priority
      from unnest(p_pool, p_agent, p_version, p_tenant, p_priority) as w (pool, agent, version, tenant, priority)
     where not exists (
           select from outlast.lanes l
            where l.pool = w.pool and l.agent = w.agent and l.version = w.version and l.tenant = w.tenant
              and l.priority = w.priority)
     order by 1, 2, 3, 4, 5
    on conflict do nothing;
    return query
    select w.item, l.id
      from unnest(p_pool, p_agent, p_version, p_tenant, p_priority) with ordinality
           as w (pool, agent, version, tenant, priority, item)
      join outlast.lanes l
        on l.pool = w.pool and l.agent = w.agent and l.version = w.version and l.tenant = w.tenant
       and l.priority = w.priority;
end
$$;

-- An array of one value as one of so many; any other as it is.
create function outlast.for_each(p_values anyarray, p_count integer) returns anyarray
language sql immutable parallel safe as $$
    select case when cardinality(p_values) = 1 then array_fill(p_values[1], array[p_count]) else p_values end
$$;

-- What a batch asks for, a row an item; the arrays of parents, depths and budgets may be empty.
create function outlast.asked_for(
    p_tenant text[], p_task text[], p_key text[], p_digest text[], p_agent text[], p_version text[], p_pool text[],
    p_priority integer[], p_input text[], p_user text[], p_trace text[], p_announce boolean[], p_parent text[],
    p_parent_key text[], p_detached boolean[], p_depth integer[], p_budget text[]
) returns table (item bigint, tenant text, task text, key text, digest text, agent text, version text, pool text,
                 priority integer, input text, user_name text, trace text, announce boolean, parent text,
                 parent_key text, detached boolean, depth integer, budget text)
language sql stable as $$
    select s.item, s.tenant, s.task, s.key, s.digest, s.agent, s.version, s.pool, s.priority, s.input, s.user_name,
           s.trace, s.announce, s.parent, s.parent_key, coalesce(s.detached, false),
           coalesce(s.depth, 0), s.budget
      from unnest(p_tenant, p_task, p_key, p_digest, p_agent, p_version, p_pool, p_priority, p_input, p_user, p_trace,
                  p_announce, p_parent, p_parent_key, p_detached, p_depth, p_budget) with ordinality
           as s (tenant, task, key, digest, agent, version, pool, priority, input, user_name, trace, announce, parent,
                 parent_key, detached, depth, budget, item)
$$;

-- Accept a batch. A lane is null where the caller does not know it; that is an error only for a task that is new, so that
-- what is refused leaves no lane behind. Answers a row for each item that is not simply accepted: replayed, conflict or busy, with the task
-- that has the key; stale, where the parent does not run under that epoch any more; or one row lane: nothing was done,
-- make the lanes and call again. An array of one value stands for that value in every item, but for the tasks' ids; the
-- arrays of parents and budgets are empty where there are none.
create function outlast.submit(
    p_tenant text[], p_task text[], p_key text[], p_digest text[], p_agent text[], p_version text[], p_pool text[],
    p_priority integer[], p_input text[], p_user text[], p_deadline_us bigint[], p_run_at bigint[], p_trace text[],
    p_announce boolean[], p_origin text[], p_parent text[], p_epoch bigint[], p_parent_key text[], p_detached boolean[],
    p_position integer[], p_request text[], p_budget text[],
    p_lane bigint[]
) returns table (item bigint, kind text, task text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint := outlast.clock_us();
    v_open bigint[] := array(select generate_series(1, cardinality(p_task)));
    v_stale bigint[] := '{}';
    v_made bigint;
    v_new bigint[];
    v_lost bigint[];
    v_kinds text[];
    v_holders text[];
    v_count integer := cardinality(p_task);
    v_tenants text[];
    v_parents text[];
    v_epochs bigint[];
    v_depth integer[] := '{}';
begin
    -- What is the same for the whole batch is sent once.
    if v_count > 1 then
        p_tenant := outlast.for_each(p_tenant, v_count);
        p_key := outlast.for_each(p_key, v_count);
        p_digest := outlast.for_each(p_digest, v_count);
        p_agent := outlast.for_each(p_agent, v_count);
        p_version := outlast.for_each(p_version, v_count);
        p_pool := outlast.for_each(p_pool, v_count);
        p_priority := outlast.for_each(p_priority, v_count);
        p_input := outlast.for_each(p_input, v_count);
        p_user := outlast.for_each(p_user, v_count);
        p_deadline_us := outlast.for_each(p_deadline_us, v_count);
        p_run_at := outlast.for_each(p_run_at, v_count);
        p_trace := outlast.for_each(p_trace, v_count);
        p_announce := outlast.for_each(p_announce, v_count);
        p_origin := outlast.for_each(p_origin, v_count);
        p_parent := outlast.for_each(p_parent, v_count);
        p_epoch := outlast.for_each(p_epoch, v_count);
        p_parent_key := outlast.for_each(p_parent_key, v_count);
        p_detached := outlast.for_each(p_detached, v_count);
        p_position := outlast.for_each(p_position, v_count);
        p_request := outlast.for_each(p_request, v_count);
        p_budget := outlast.for_each(p_budget, v_count);
        p_lane := outlast.for_each(p_lane, v_count);
    end if;

    -- A parent must still be there for its children when they are; one that exists already is accepted whatever became of
    -- its parent.
    if p_parent <> '{}' then
        select array_agg(s.tenant), array_agg(s.parent), array_agg(s.epoch) into v_tenants, v_parents, v_epochs
          from (select distinct s.tenant, s.parent, s.epoch
                  from unnest(p_tenant, p_parent, p_epoch) as s (tenant, parent, epoch)
                 where s.parent is not null) s;
        perform outlast.lock_heads(v_tenants, v_parents);
        v_now := outlast.clock_us();
        -- A child is one deeper than its parent, of which a batch has few.
        select array_agg(d.depth order by s.item) into v_depth
          from unnest(p_tenant, p_parent) with ordinality as s (tenant, parent, item)
          left join (select i.tenant, i.task, i.depth + 1 as depth
                       from (select distinct p.tenant, p.parent
                               from unnest(v_tenants, v_parents) as p (tenant, parent)) p
                       join outlast.inputs i on i.tenant = p.tenant and i.task = p.parent) d
            on d.tenant = s.tenant and d.task = s.parent;
        if exists (
            select from unnest(v_tenants, v_parents, v_epochs) as s (tenant, parent, epoch)
             where not exists (select from outlast.tasks t
                                where t.tenant = s.tenant and t.id = s.parent and t.state = 'running'
                                  and t.epoch = s.epoch and not t.cancelling))
        then
            v_stale := array(
                select s.item
                  from unnest(p_tenant, p_task, p_parent, p_epoch) with ordinality
                       as s (tenant, task, parent, epoch, item)
                 where s.parent is not null
                   and not exists (select from outlast.tasks t
                                    where t.tenant = s.tenant and t.id = s.parent and t.state = 'running'
                                      and t.epoch = s.epoch and not t.cancelling)
                   and not exists (select from outlast.inputs i where i.tenant = s.tenant and i.task = s.task));
        end if;
        if v_stale <> '{}' then
            v_open := array(select o.item from unnest(v_open) as o (item) where o.item <> all(v_stale));
        end if;
    end if;

    -- A lane that is gone (a database restored under a running program) would hide its tasks for ever. A caller's
    -- snapshot that stands still cannot see a lane that was made for it just now.
    if (select count(*) from outlast.lanes l where l.id = any(p_lane))
       <> (select count(distinct x.lane) from unnest(p_lane) as x (lane))
       and current_setting('transaction_isolation') = 'read committed' then
        raise exception 'a lane does not exist' using errcode = 'OLLAN';
    end if;
    if array_position(p_lane, null) is not null and not exists (
           select from unnest(p_task, p_key) as s (task, key)
            where not outlast.is_key(s.task) or not outlast.is_key(s.key))
       and exists (
           select from unnest(p_tenant, p_task, p_key, p_lane) with ordinality as s (tenant, task, key, lane, item)
            where s.lane is null and s.item <> all(v_stale)
              and not exists (select from outlast.inputs i where i.tenant = s.tenant and i.key = s.key)
              and not exists (select from outlast.inputs i where i.tenant = s.tenant and i.task = s.task))
    then
        return query select 0::bigint, 'lane', null::text;
        return;
    end if;
    if v_stale <> '{}' then
        return query select o.item, 'stale', p_task[o.item] from unnest(v_stale) as o (item);
        if v_open = '{}' then
            return;
        end if;
    end if;

    for v_round in 1..5 loop
        -- Claim ids and keys by one insert, in the order of the keys, so that two batches cannot deadlock. Waiting for
        -- a twin's open transaction is bounded by lock_timeout.
        --
        -- Nearly all batches are new from end to end. To ask for rivals at each row costs as much again as the row, so
        -- that a batch is put in as it is first, and comes back to here as a whole where it meets one.
        v_made := null;
        if v_round = 1 and v_stale = '{}' and v_count >= 8 then
            begin
                insert into outlast.inputs (tenant, task, key, request_digest, agent, version_asked, pool, priority,
                       input, user_name, trace, announce, submitted_at, parent, parent_key, detached, depth, budget)
                select s.tenant, s.task, s.key, s.digest, s.agent, s.version, s.pool, s.priority,
                       s.input, s.user_name, s.trace, s.announce, v_now, s.parent, s.parent_key, s.detached, s.depth,
                       s.budget
                  from outlast.asked_for(
                       p_tenant, p_task, p_key, p_digest, p_agent, p_version, p_pool, p_priority, p_input, p_user,
                       p_trace, p_announce, p_parent, p_parent_key, p_detached, v_depth, p_budget) s
                 order by s.tenant collate "C", s.key collate "C", s.item;
                v_made := v_count;
            exception when unique_violation then
                null;
            end;
        end if;
        if v_made is null then
            with made as (
                insert into outlast.inputs (tenant, task, key, request_digest, agent, version_asked, pool, priority,
                       input, user_name, trace, announce, submitted_at, parent, parent_key, detached, depth, budget)
                select s.tenant, s.task, s.key, s.digest, s.agent, s.version, s.pool, s.priority,
                       s.input, s.user_name, s.trace, s.announce, v_now, s.parent, s.parent_key, s.detached, s.depth,
                       s.budget
                  from outlast.asked_for(
                       p_tenant, p_task, p_key, p_digest, p_agent, p_version, p_pool, p_priority, p_input, p_user,
                       p_trace, p_announce, p_parent, p_parent_key, p_detached, v_depth, p_budget) s
                 where (v_round = 1 and v_stale = '{}') or s.item = any(v_open)
                 order by s.tenant collate "C", s.key collate "C", s.item
                on conflict do nothing
                returning 1)
            select count(*) into v_made from made;
        end if;

        -- New is what has an input and no head yet: heads are written by the transaction that writes the inputs.
        if v_made = cardinality(v_open) then
            v_new := v_open;
        else
            select coalesce(array_agg(n.item), '{}') into v_new
              from (select min(s.item) as item
                      from unnest(p_tenant, p_task, p_key) with ordinality as s (tenant, task, key, item)
                      join outlast.inputs i
                        on i.tenant = s.tenant and i.task = s.task and i.key is not distinct from s.key
                     where s.item = any(v_open)
                       and not exists (select from outlast.tasks t where t.tenant = s.tenant and t.id = s.task)
                     group by s.tenant, s.task) n;
        end if;

        if v_made > 0 then
            if exists (select from unnest(p_lane) with ordinality as s (lane, item)
                        where s.lane is null and (v_made = cardinality(p_task) or s.item = any(v_new))) then
                raise exception 'a lane is not known' using errcode = 'OLLAN';
            end if;
            with s as materialized (
                select s.item, s.tenant, s.task, s.lane, s.announce, v_now + s.deadline_us as deadline_at,
                       case when s.run_at > v_now then s.run_at end as run_at,
                       '{"agent":' || to_json(s.agent) || ',"pool":' || to_json(s.pool)
                       || coalesce(',' || substr(s.origin, 2), '}') as data
                  from unnest(p_tenant, p_task, p_agent, p_pool, p_deadline_us, p_run_at, p_announce, p_origin, p_lane)
                       with ordinality
                       as s (tenant, task, agent, pool, deadline_us, run_at, announce, origin, lane, item)
                 where v_made = cardinality(p_task) or s.item = any(v_new)
            ), heads as (
                insert into outlast.tasks (tenant, id, state, reason, last_event, lane, deadline_at)
                select s.tenant, s.task, case when s.run_at is null then 'queued' else 'waiting' end,
                       case when s.run_at is not null then 'timer' end, 1, s.lane, s.deadline_at
                  from s
            ), entries as (
                insert into outlast.queue (lane, tenant, task)
                select s.lane, s.tenant, s.task from s where s.run_at is null order by s.item
            ), alarms as (
                insert into outlast.timers (tenant, task, kind, due_at)
                select s.tenant, s.task, 'wake', s.run_at from s where s.run_at is not null
                union all
                select s.tenant, s.task, 'deadline', s.deadline_at from s where s.deadline_at is not null
            ), messages as (
                insert into outlast.outbox (tenant, task, number, topic, data, created_at)
                select s.tenant, s.task, 1, 'task.submitted', s.data, v_now from s where s.announce
            )
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            select s.tenant, s.task, 1, 'task.submitted', 0, s.data, v_now from s;

            -- On record at their parents, with an event each, numbered on from the heads.
            if p_parent <> '{}' then
                with s as materialized (
                    select s.tenant, s.task, s.agent, s.input, s.parent, s.epoch, s.key, s.position, s.request,
                           row_number() over (partition by s.tenant, s.parent order by s.item) as place
                      from unnest(p_tenant, p_task, p_agent, p_input, p_parent, p_epoch, p_parent_key, p_position,
                                  p_request) with ordinality
                           as s (tenant, task, agent, input, parent, epoch, key, position, request, item)
                     where s.parent is not null and (v_made = cardinality(p_task) or s.item = any(v_new))
                ), begun as (
                    insert into outlast.operations (tenant, task, key, position, kind, name, state, request, epoch,
                           arguments, created_at)
                    select s.tenant, s.parent, s.key, s.position, 'child', s.agent, 'running', s.request, s.epoch,
                           s.input, v_now
                      from s
                    on conflict do nothing
                ), heads as (
                    update outlast.tasks t
                       set children = t.children + p.more, last_event = t.last_event + p.more
                      from (select s.tenant, s.parent, count(*) as more from s group by 1, 2) p
                     where t.tenant = p.tenant and t.id = p.parent
                    returning t.tenant, t.id, t.last_event - p.more as last
                )
                insert into outlast.events (tenant, task, number, kind, epoch, data, at)
                select s.tenant, s.parent, h.last + s.place, 'operation.started', s.epoch,
                       '{"operation":' || to_json(s.key) || ',"kind":"child","name":' || to_json(s.agent)
                       || ',"child":' || to_json(s.task) || '}',
                       v_now
                  from s
                  join heads h on h.tenant = s.tenant and h.id = s.parent;
            end if;
        end if;
        if v_made = cardinality(v_open) then
            return;
        end if;

        -- Whoever lost reads the winner in this new statement: the winner has committed, or the insert would still
        -- be waiting for it.
        select coalesce(array_agg(f.item), '{}'), array_agg(f.kind), array_agg(f.holder)
          into v_lost, v_kinds, v_holders
          from (select s.item,
                       case when coalesce(k.request_digest, i.request_digest) <> s.digest then 'conflict'
                            when coalesce(k.task, s.task) = s.task and i.key is not distinct from s.key then 'accepted'
                            when k.task is not null then 'replayed'
                            else 'conflict' end as kind,
                       coalesce(k.task, i.task) as holder
                  from unnest(p_tenant, p_task, p_key, p_digest) with ordinality as s (tenant, task, key, digest, item)
                  left join outlast.inputs k on k.tenant = s.tenant and k.key = s.key
                  left join outlast.inputs i on i.tenant = s.tenant and i.task = s.task
                 where s.item = any(v_open) and s.item <> all(v_new) and (k.task is not null or i.task is not null)) f;
        return query select * from unnest(v_lost, v_kinds, v_holders);

        -- What found no winner lost against one that is gone by now: once more.
        v_open := array(select o.item from unnest(v_open) as o (item)
                         where o.item <> all(v_new) and o.item <> all(v_lost));
        if v_open = '{}' then
            return;
        end if;
    end loop;
    return query select o.item, 'busy', p_task[o.item] from unnest(v_open) as o (item);
end
$$;

-- The same with the waiting contained: a batch that meets a twin's open transaction goes on item by item, and only
-- items whose twin stays open are busy. The caller's transaction survives, since each part has a savepoint of its own.
create function outlast.submit_guarded(
    p_tenant text[], p_task text[], p_key text[], p_digest text[], p_agent text[], p_version text[], p_pool text[],
    p_priority integer[], p_input text[], p_user text[], p_deadline_us bigint[], p_run_at bigint[], p_trace text[],
    p_announce boolean[], p_origin text[], p_parent text[], p_epoch bigint[], p_parent_key text[], p_detached boolean[],
    p_position integer[], p_request text[], p_budget text[],
    p_lane bigint[], p_whole boolean, p_notify boolean
) returns table (item bigint, kind text, task text) language plpgsql volatile set lock_timeout = '2s' as $$
#variable_conflict use_column
begin
    if p_notify then
        perform pg_notify('outlast', 'queue'), pg_notify('outlast', 'events');
    end if;
    if p_whole then
        begin
            return query
            select * from outlast.submit(p_tenant, p_task, p_key, p_digest, p_agent, p_version, p_pool, p_priority,
                   p_input, p_user, p_deadline_us, p_run_at, p_trace, p_announce, p_origin, p_parent, p_epoch,
                   p_parent_key, p_detached, p_position, p_request, p_budget, p_lane);
            return;
        exception when lock_not_available or deadlock_detected then
            null;
        end;
    end if;
    for n in 1..cardinality(p_task) loop
        begin
            return query
            select n::bigint, s.kind, s.task
              from outlast.submit(p_tenant[n:n], p_task[n:n], p_key[n:n], p_digest[n:n], p_agent[n:n], p_version[n:n],
                   p_pool[n:n], p_priority[n:n], p_input[n:n], p_user[n:n], p_deadline_us[n:n], p_run_at[n:n],
                   p_trace[n:n], p_announce[n:n], p_origin[n:n], p_parent[n:n], p_epoch[n:n], p_parent_key[n:n],
                   p_detached[n:n], p_position[n:n], p_request[n:n], p_budget[n:n], p_lane[n:n]) s;
        exception when lock_not_available or deadlock_detected then
            return query select n::bigint, 'busy', p_task[n];
        end;
    end loop;
end
$$;
