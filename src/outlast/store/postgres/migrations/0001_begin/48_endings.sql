-- How tasks end by the database's own decision: a deadline, a crash loop, a cancel.
--
-- Lock order: the caller holds the head of each task; then rows of that task only. What an end means for other tasks is
-- left as a post and delivered apart from it, so that nobody locks the heads of two families for one ending.

-- End the attempt of a task: the lease becomes an attempt that ended.
create function outlast.end_attempt(p_tenant text, p_task text, p_end text, p_now bigint)
returns void language sql volatile as $$
    with gone as (
        delete from outlast.leases l
         where l.tenant = p_tenant and l.task = p_task
        returning l.epoch, l.round, l.session, l.version, l.config, l.started_at)
    insert into outlast.attempts (tenant, task, epoch, round, session, worker, version, config, started_at, ended_at,
           "end")
    select p_tenant, p_task, g.epoch, g.round, g.session, coalesce(s.name, g.session), g.version, g.config,
           g.started_at, p_now, p_end
      from gone g
      left join outlast.sessions s on s.id = g.session
$$;

-- Withdraw the questions of a task that are open; answers to questions stay. Answers the number of the last event.
create function outlast.withdraw_approvals(p_tenant text, p_task text, p_epoch bigint, p_last bigint, p_now bigint)
returns bigint language plpgsql volatile as $$
declare
    v_last bigint := p_last;
    v_id text;
begin
    for v_id in
        select a.id
          from outlast.approvals a
         where a.tenant = p_tenant and a.task = p_task
           and (a.state = 'pending' or (a.state = 'approved' and a.subject = 'call'))
         order by a.key, a.number
    loop
        v_last := v_last + 1;
        update outlast.approvals a set state = 'withdrawn' where a.tenant = p_tenant and a.id = v_id;
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (p_tenant, p_task, v_last, 'approval.withdrawn', p_epoch, '{"approval":' || to_json(v_id) || '}', p_now);
    end loop;
    return v_last;
end
$$;

-- End a task whose attempt, if it had one, the caller has ended, and whose events up to p_last are written. p_said: what
-- the final event says before effects_open. A task that runs is taken away from its worker by the epoch.
create function outlast.end_task(
    p_tenant text, p_task text, p_epoch bigint, p_last bigint, p_state text, p_error text, p_said text, p_now bigint
) returns void language plpgsql volatile as $$
declare
    v_head record;
    v_input record;
    v_open integer;
    v_last bigint;
    v_data text;
begin
    select t.round, t.children into v_head from outlast.tasks t where t.tenant = p_tenant and t.id = p_task;
    select i.announce, i.parent, i.parent_key into v_input
      from outlast.inputs i
     where i.tenant = p_tenant and i.task = p_task;

    -- An ended task leaves no running effect: nobody knows of those. It sends nothing, so what was to be sent again is
    -- looked at like any other.
    with lost as (
        update outlast.operations o
           set state = 'unknown'
         where o.tenant = p_tenant and o.task = p_task and o.state = 'running'
           and o.kind in ('tool', 'model', 'compensation')
        returning o.key, o.attempt)
    insert into outlast.unsettled (tenant, task, key, since, ask_at, sender_gone)
    select p_tenant, p_task, l.key, p_now, p_now, outlast.said_over(p_tenant, p_task, l.key, l.attempt) from lost l
    on conflict do nothing;
    perform outlast.give_up_keys(array[p_tenant], array[p_task]);
    select count(*) into v_open from outlast.unsettled u where u.tenant = p_tenant and u.task = p_task;
    if v_open > 0 then
        update outlast.unsettled u
           set resend = false, ask_at = p_now
         where u.tenant = p_tenant and u.task = p_task and u.resend;
    end if;

    perform outlast.release_tasks(array[p_tenant], array[p_task]);
    v_last := outlast.withdraw_approvals(p_tenant, p_task, p_epoch, p_last, p_now) + 1;
    v_data := '{' || p_said || '"effects_open":' || v_open || '}';
    delete from outlast.timers m where m.tenant = p_tenant and m.task = p_task;
    insert into outlast.results (tenant, task, round, state, error, effects_open, ended_at)
    values (p_tenant, p_task, v_head.round, p_state, p_error, v_open, p_now);
    insert into outlast.events (tenant, task, number, kind, epoch, data, at)
    values (p_tenant, p_task, v_last, 'task.' || p_state, p_epoch, v_data, p_now);
    if v_input.announce then
        insert into outlast.outbox (tenant, task, number, topic, data, created_at)
        values (p_tenant, p_task, v_last, 'task.' || p_state, v_data, p_now);
    end if;

    -- For its parent, and for those of its children that are not to outlive it.
    if v_input.parent is not null then
        insert into outlast.posts (tenant, task, kind, name, data)
        values (p_tenant, v_input.parent, 'child', v_input.parent_key,
                '{"task":' || to_json(p_task) || ',"state":' || to_json(p_state) || '}');
    end if;
    if v_head.children > 0 then
        insert into outlast.posts (tenant, task, kind, name, data)
        select i.tenant, i.task, 'cancel', p_task, '{}'
          from outlast.inputs i
          join outlast.tasks t on t.tenant = i.tenant and t.id = i.task
         where i.tenant = p_tenant and i.parent = p_task and not i.detached
           and t.state in ('queued', 'running', 'waiting')
         order by i.task;
    end if;

    update outlast.tasks t
       set state = p_state, reason = null, cancelling = false, undoing = false, last_event = v_last,
           epoch = t.epoch + case when t.state = 'running' then 1 else 0 end
     where t.tenant = p_tenant and t.id = p_task;
end
$$;

-- What the cancel that stands has said: its part of the final event, and the error of the result. Nobody can ask twice
-- while it stands, so it is the last that was said.
create function outlast.cancel_said(p_tenant text, p_task text, out said text, out error text)
language plpgsql stable as $$
declare
    v_data json;
begin
    select e.data::json into v_data
      from outlast.events e
     where e.tenant = p_tenant and e.task = p_task and e.kind = 'task.cancel_requested'
     order by e.number desc
     limit 1;
    said := '"by":' || (v_data -> 'by') || ',"reason":' || (v_data -> 'reason') || ',';
    error := '{"code":"cancelled","message":' || (v_data -> 'reason') || '}';
end
$$;

-- Fail a task whose attempt, if it had one, the caller has ended; one whose cancel stands, and that had still to undo what
-- it has done, ends as cancelled all the same.
create function outlast.fail_task(
    p_tenant text, p_task text, p_epoch bigint, p_last bigint, p_error text, p_said text, p_now bigint
) returns void language plpgsql volatile as $$
declare
    v_cancel record;
begin
    if exists (select from outlast.tasks t where t.tenant = p_tenant and t.id = p_task and t.cancelling) then
        select c.said, c.error into v_cancel from outlast.cancel_said(p_tenant, p_task) c;
        perform outlast.end_task(p_tenant, p_task, p_epoch, p_last, 'cancelled', v_cancel.error, v_cancel.said, p_now);
    else
        perform outlast.end_task(p_tenant, p_task, p_epoch, p_last, 'failed', p_error, p_said, p_now);
    end if;
end
$$;

-- End a task that runs, and its attempt, as the cancel that stands asked for.
create function outlast.end_cancelled(p_tenant text, p_task text, p_epoch bigint, p_last bigint, p_now bigint)
returns void language plpgsql volatile as $$
declare
    v_cancel record;
begin
    select c.said, c.error into v_cancel from outlast.cancel_said(p_tenant, p_task) c;
    perform outlast.end_attempt(p_tenant, p_task, 'cancelled', p_now);
    insert into outlast.events (tenant, task, number, kind, epoch, data, at)
    values (p_tenant, p_task, p_last + 1, 'attempt.cancelled', p_epoch, '{}', p_now);
    perform outlast.end_task(p_tenant, p_task, p_epoch, p_last + 1, 'cancelled', v_cancel.error, v_cancel.said, p_now);
end
$$;

-- Cancel one task: end it where it does not run, mark it where it does, and mark and queue it where it has begun and is to
-- undo what it has done. The first who asks is the one whose words count. An undo that is decided comes to its end,
-- whoever cancels meanwhile.
create function outlast.cancel_head(
    p_tenant text, p_task text, p_by text, p_reason text, p_undo boolean, p_now bigint,
    out kind text, out state text, out done boolean, out lane bigint
) language plpgsql volatile as $$
declare
    v_head record;
    v_undo boolean;
    v_said text := '"by":' || to_json(p_by) || ',"reason":' || to_json(p_reason);
begin
    select t.state, t.epoch, t.round, t.lane, t.last_event, t.cancelling into v_head
      from outlast.tasks t
     where t.tenant = p_tenant and t.id = p_task;
    done := false;
    if not found then
        kind := 'not_found';
        state := '';
    elsif v_head.state in ('succeeded', 'failed', 'cancelled') then
        kind := case v_head.state when 'cancelled' then 'already' else 'ended' end;
        state := v_head.state;
    elsif v_head.cancelling then
        kind := 'requested';
        state := v_head.state;
    else
        done := true;
        v_undo := v_head.epoch > 0 and (p_undo or exists (
            select from outlast.operations o
             where o.tenant = p_tenant and o.task = p_task and o.kind = 'value' and o.name = 'undo' and o.state = 'succeeded'
               and o.result::json ->> 'task' = p_task and (o.result::json ->> 'round')::integer = v_head.round));
        if v_head.state = 'running' or v_undo then
            kind := 'requested';
            state := case v_head.state when 'waiting' then 'queued' else v_head.state end;
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            values (p_tenant, p_task, v_head.last_event + 1, 'task.cancel_requested', 0,
                    '{' || v_said || case when v_undo then ',"undo":true}' else '}' end, p_now);
            update outlast.tasks t set cancelling = true, undoing = v_undo where t.tenant = p_tenant and t.id = p_task;
            perform outlast.raise_facts(p_tenant, p_task, 1, v_head.last_event + 1, true, p_now);
        else
            kind := 'cancelled';
            state := 'cancelled';
            if v_head.state = 'queued' then
                lane := v_head.lane;
            end if;
            perform outlast.end_task(p_tenant, p_task, 0, v_head.last_event, 'cancelled',
                '{"code":"cancelled","message":' || to_json(p_reason) || '}', v_said || ',', p_now);
        end if;
        insert into outlast.audit (tenant, at, who, what, subject, reason, data)
        values (p_tenant, p_now, p_by, 'cancel', p_task, p_reason, '{}');
    end if;
end
$$;

-- Remove queue entries of tasks that ended while they were queued. They are mostly the oldest of their lanes; one that
-- is not is found stale by a claim.
create function outlast.forget_entries(p_lane bigint[], p_tenant text[], p_task text[])
returns void language sql volatile as $$
    delete from outlast.queue q
     using (select distinct x.lane from unnest(p_lane) as x (lane)) x
     cross join lateral (
           select e.lane, e.xid, e.seq, e.tenant, e.task
             from outlast.lanes l
             join outlast.queue e on e.lane = l.id and (e.xid, e.seq) >= (l.mark_xid, l.mark_seq)
            where l.id = x.lane
            order by e.xid, e.seq
            limit 5000) e
      join unnest(p_tenant, p_task) as t (tenant, task) on t.tenant = e.tenant and t.task = e.task
     where q.lane = e.lane and q.xid = e.xid and q.seq = e.seq
$$;
