-- sweep, reconcile: sessions that ran out, deadlines that passed, timers that are due, leases that nobody knows of.
--
-- Lock order: the sweepers' advisory lock, tried and not waited for; sessions with skip locked; heads with skip locked;
-- then rows of those tasks only. What is held by somebody else is left for the next sweep.
-- What is fenced: judgements by time are made after the lock, by a clock read after the lock. Taking a task away raises
-- its epoch. A task that bears a cancel's mark is not given back, parked or failed: it ends as cancelled; but one that has
-- still to undo what it has done is given back as any other.

-- Sweep once. Answers rows of a kind each: session, lost, parked, expired, woken; more; next, with its microseconds.
create function outlast.sweep(
    p_limit integer, p_max_deaths integer, p_grace bigint, p_now bigint, p_tidy boolean
) returns table (kind text, tenant text, task text, number bigint) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_sessions text[];
    v_one record;
    v_timer record;
    v_count integer;
    v_end text;
    v_lanes bigint[] := '{}';
    v_tenants text[] := '{}';
    v_tasks text[] := '{}';
    v_more boolean := false;
    v_error constant text := '{"code":"deadline_exceeded","message":"the task''s deadline passed"}';
begin
    if not pg_try_advisory_xact_lock(hashtextextended('outlast.sweep', 0)) then
        return;
    end if;

    -- Sessions: lock those that seem over, then judge by a later clock.
    v_now := coalesce(p_now, outlast.clock_us());
    v_sessions := array(
        select s.id from outlast.sessions s
         where s.lost_at is null and s.expires_at <= v_now
         order by s.expires_at, s.id
         limit p_limit
           for update skip locked);
    v_now := coalesce(p_now, outlast.clock_us());
    if v_sessions <> '{}' then
        return query
        update outlast.sessions s
           set lost_at = v_now
         where s.id = any(v_sessions) and s.lost_at is null and s.expires_at <= v_now
        returning 'session', null::text, s.id, null::bigint;
        v_more := cardinality(v_sessions) >= p_limit;
    end if;

    -- Leases of sessions that are lost, now or before: what was locked then is looked at again. They are looked up by
    -- their session, since a walk over all leases would meet those that a long snapshot keeps from being removed.
    v_count := 0;
    v_sessions := array(select s.id from outlast.sessions s where s.lost_at is not null);
    for v_one in
        select t.tenant::text, t.id::text as task, t.epoch, t.round, t.last_event, t.lane, t.cancelling and not t.undoing as cut,
               l.session
          from unnest(v_sessions) as s (id)
         cross join lateral (
               select l.tenant, l.task, l.epoch, l.session
                 from outlast.leases l
                where l.session = s.id
                limit p_limit) l
          join outlast.tasks t on t.tenant = l.tenant and t.id = l.task and t.state = 'running' and t.epoch = l.epoch
         limit p_limit
           for no key update of t skip locked
    loop
        v_count := v_count + 1;
        v_now := coalesce(p_now, outlast.clock_us());
        if v_one.cut then
            perform outlast.end_cancelled(v_one.tenant, v_one.task, v_one.epoch, v_one.last_event, v_now);
            return query select 'lost', v_one.tenant, v_one.task, null::bigint;
            continue;
        end if;
        perform outlast.end_attempt(v_one.tenant, v_one.task, 'lost', v_now);
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (v_one.tenant, v_one.task, v_one.last_event + 1, 'attempt.lost', v_one.epoch,
                '{"session":' || to_json(v_one.session) || '}', v_now);
        if (select count(*) = p_max_deaths and bool_and(a."end" = 'lost')
              from (select a."end"
                      from outlast.attempts a
                     where a.tenant = v_one.tenant and a.task = v_one.task and a.round = v_one.round
                     order by a.epoch desc
                     limit p_max_deaths) a)
        then
            perform outlast.fail_task(v_one.tenant, v_one.task, v_one.epoch, v_one.last_event + 1,
                '{"code":"crash_loop","message":"the last ' || p_max_deaths
                || ' workers that ran this task died"}', '"code":"crash_loop",', v_now);
            return query select 'parked', v_one.tenant, v_one.task, null::bigint;
        else
            insert into outlast.queue (lane, tenant, task) values (v_one.lane, v_one.tenant, v_one.task);
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            values (v_one.tenant, v_one.task, v_one.last_event + 2, 'task.queued', v_one.epoch, '{}', v_now);
            return query select 'lost', v_one.tenant, v_one.task, null::bigint;
            update outlast.tasks t
               set state = 'queued', epoch = t.epoch + 1, last_event = t.last_event + 2
             where t.tenant = v_one.tenant and t.id = v_one.task;
        end if;
    end loop;
    v_more := v_more or v_count >= p_limit;

    -- Deadlines that passed, then wakes that are due. Heads are locked first; their timer is read again afterwards.
    v_count := 0;
    v_now := coalesce(p_now, outlast.clock_us());
    for v_one in
        select t.tenant::text, t.id::text as task, t.state, t.epoch, t.last_event, t.lane, t.undoing,
               t.cancelling and not t.undoing as cut
          from outlast.timers m
          join outlast.tasks t on t.tenant = m.tenant and t.id = m.task
         where m.kind = 'deadline' and m.due_at <= v_now
           and (t.state <> 'running' or m.due_at <= v_now - p_grace)
         order by m.due_at
         limit p_limit
           for no key update of t skip locked
    loop
        v_count := v_count + 1;
        v_now := coalesce(p_now, outlast.clock_us());
        perform from outlast.timers m
          where m.tenant = v_one.tenant and m.task = v_one.task and m.kind = 'deadline' and m.due_at <= v_now
            and (v_one.state <> 'running' or m.due_at <= v_now - p_grace);
        continue when not found or v_one.state not in ('queued', 'running', 'waiting');
        if v_one.cut then
            perform outlast.end_cancelled(v_one.tenant, v_one.task, v_one.epoch, v_one.last_event, v_now);
        elsif v_one.state = 'running' then
            v_end := case when v_one.undoing then 'cancelled' else 'failed' end;
            perform outlast.end_attempt(v_one.tenant, v_one.task, v_end, v_now);
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            values (v_one.tenant, v_one.task, v_one.last_event + 1, 'attempt.' || v_end, v_one.epoch, '{}', v_now);
            perform outlast.fail_task(v_one.tenant, v_one.task, v_one.epoch, v_one.last_event + 1, v_error,
                '"code":"deadline_exceeded",', v_now);
        else
            if v_one.state = 'queued' then
                v_lanes := v_lanes || v_one.lane;
                v_tenants := v_tenants || v_one.tenant;
                v_tasks := v_tasks || v_one.task;
            end if;
            perform outlast.fail_task(v_one.tenant, v_one.task, 0, v_one.last_event, v_error,
                '"code":"deadline_exceeded",', v_now);
        end if;
        return query select 'expired', v_one.tenant, v_one.task, null::bigint;
    end loop;
    v_more := v_more or v_count >= p_limit;

    if v_lanes <> '{}' then
        perform outlast.forget_entries(v_lanes, v_tenants, v_tasks);
    end if;

    v_count := 0;
    v_now := coalesce(p_now, outlast.clock_us());
    for v_one in
        select t.tenant::text, t.id::text as task, t.state, t.reason, t.last_event, t.lane
          from outlast.timers m
          join outlast.tasks t on t.tenant = m.tenant and t.id = m.task
         where m.kind = 'wake' and m.due_at <= v_now
         order by m.due_at
         limit p_limit
           for no key update of t skip locked
    loop
        v_count := v_count + 1;
        v_now := coalesce(p_now, outlast.clock_us());
        delete from outlast.timers m
         where m.tenant = v_one.tenant and m.task = v_one.task and m.kind = 'wake'
           and (m.due_at <= v_now or v_one.state <> 'waiting');
        continue when not found or v_one.state <> 'waiting';
        insert into outlast.queue (lane, tenant, task) values (v_one.lane, v_one.tenant, v_one.task);
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (v_one.tenant, v_one.task, v_one.last_event + 1, 'task.woken', 0,
                '{"reason":' || to_json(v_one.reason) || '}', v_now);
        update outlast.tasks t
           set state = 'queued', reason = null, last_event = t.last_event + 1
         where t.tenant = v_one.tenant and t.id = v_one.task;
        return query select 'woken', v_one.tenant, v_one.task, null::bigint;
    end loop;
    v_more := v_more or v_count >= p_limit;

    -- Waits of providers that are over.
    v_now := coalesce(p_now, outlast.clock_us());
    delete from outlast.provider_waits w
     using (select o.tenant, o.provider
              from outlast.provider_waits o
             where o.until_at <= v_now
               for update skip locked) o
     where w.tenant = o.tenant and w.provider = o.provider;

    -- Now and then, rows that nobody will ask for again: sessions that were lost a day ago, writers that wrote nothing
    -- for a day, business keys that stand for nothing since a day.
    if p_tidy then
        delete from outlast.business_keys b
         using (select k.tenant, k.tool, k.value, k.task, k.key
                  from outlast.business_keys k
                 where k.state = 'done' and k.until_at < v_now - 86400000000
                   for update skip locked) k
         where b.tenant = k.tenant and b.tool = k.tool and b.value = k.value and b.task = k.task and b.key = k.key;
        delete from outlast.sessions s
         where s.lost_at < v_now - 86400000000 and not exists (select from outlast.leases l where l.session = s.id);
        delete from outlast.writers w where w.updated_at < v_now - 86400000000;
    end if;

    if v_more then
        return query select 'more', null::text, null::text, null::bigint;
    end if;
    return query
    select 'next', null::text, null::text, greatest(least(
               (select min(m.due_at) from outlast.timers m where m.due_at > v_now),
               (select min(case m.kind when 'deadline' then m.due_at + p_grace else m.due_at end)
                  from outlast.timers m where m.due_at <= v_now)) - v_now, 0)
     where exists (select from outlast.timers);
end
$$;

-- Give back the leases of a session that are not held, after a claim whose answer was lost. A claim keeps the session's
-- row while it makes leases, so one that is about to commit is waited for here; one that comes later than this is refused by
-- the fence. So is a look like this one that comes late: it knows nothing of what was claimed since.
create function outlast.reconcile(
    p_session text, p_tenants text[], p_tasks text[], p_epochs bigint[], p_fence bigint, p_now bigint
) returns table (tenant text, task text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_one record;
    v_now bigint;
begin
    -- Lock first: a claim that waited behind the update alone would go on with the fence that it had seen, since a key
    -- share is compatible with an update of other columns.
    perform from outlast.sessions s where s.id = p_session for update;
    update outlast.sessions s
       set fence = p_fence
     where s.id = p_session and s.fence < p_fence and s.lost_at is null;
    if not found then
        return;
    end if;
    for v_one in
        select t.tenant::text, t.id::text as task, t.epoch, t.last_event, t.lane, t.cancelling and not t.undoing as cut
          from outlast.leases l
          join outlast.tasks t on t.tenant = l.tenant and t.id = l.task and t.state = 'running' and t.epoch = l.epoch
         where l.session = p_session
           and not exists (select from unnest(p_tenants, p_tasks, p_epochs) as h (tenant, task, epoch)
                            where h.tenant = l.tenant and h.task = l.task and h.epoch = l.epoch)
         order by t.tenant, t.id
           for no key update of t
    loop
        v_now := coalesce(p_now, outlast.clock_us());
        -- The lease may have ended while its head was waited for.
        continue when not exists (select from outlast.leases l
                                   where l.session = p_session and l.tenant = v_one.tenant and l.task = v_one.task
                                     and l.epoch = v_one.epoch);
        if v_one.cut then
            perform outlast.end_cancelled(v_one.tenant, v_one.task, v_one.epoch, v_one.last_event, v_now);
            return query select v_one.tenant, v_one.task;
            continue;
        end if;
        perform outlast.end_attempt(v_one.tenant, v_one.task, 'released', v_now);
        insert into outlast.queue (lane, tenant, task) values (v_one.lane, v_one.tenant, v_one.task);
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (v_one.tenant, v_one.task, v_one.last_event + 1, 'attempt.released', v_one.epoch, '{}', v_now),
               (v_one.tenant, v_one.task, v_one.last_event + 2, 'task.queued', v_one.epoch, '{}', v_now);
        update outlast.tasks t
           set state = 'queued', epoch = t.epoch + 1, last_event = t.last_event + 2
         where t.tenant = v_one.tenant and t.id = v_one.task;
        return query select v_one.tenant, v_one.task;
    end loop;
end
$$;
