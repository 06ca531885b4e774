-- Facts that reach a task: what every verb that posts one does to the head.
--
-- Lock order: the caller holds the head of each task; then rows of that task only, those that a delivery may have locked
-- before it waits for the head with skip locked.

-- Answer whether evidence says of an attempt that it sends nothing any more. Whoever puts an operation into the
-- reconciliation queue asks it under the head's lock, since that may have been said before.
create function outlast.said_over(p_tenant text, p_task text, p_key text, p_attempt integer)
returns boolean language sql stable as $$
    select exists (select from outlast.evidence e
                    where e.tenant = p_tenant and e.task = p_task and e.key = p_key and e.attempt = p_attempt
                      and e.says = 'over')
$$;

-- Answer whether evidence has it that an operation which changes something happened, of whichever attempt, and no person
-- has settled it since. What a gateway saw of one request is not the word of the whole call. It is asked under the head's
-- lock.
create function outlast.word_stands(p_tenant text, p_task text, p_key text, p_attempt integer, p_effect text)
returns boolean language sql stable as $$
    select p_effect <> 'read'
           and exists (select from outlast.evidence e
                        where e.tenant = p_tenant and e.task = p_task and e.key = p_key and e.says = 'happened'
                          and e.source <> 'gateway' and e.attempt between 1 and p_attempt
                          and e.number > (select coalesce(max(w.number), 0)
                                            from outlast.evidence w
                                           where w.tenant = p_tenant and w.task = p_task and w.key = p_key
                                             and w.source = 'person'))
$$;

-- Raise the facts of a live task, whose events up to p_last the caller has written. A task that waits is queued, unless
-- it has never begun (then its time lies ahead) or waits for an operator and p_operators is false; the worker of one
-- that runs finds it among its news.
create function outlast.raise_facts(
    p_tenant text, p_task text, p_more integer, p_last bigint, p_operators boolean, p_now bigint,
    out woken boolean, out told boolean
) language plpgsql volatile as $$
declare
    v_head record;
begin
    select t.state, t.reason, t.epoch, t.facts, t.lane into v_head
      from outlast.tasks t
     where t.tenant = p_tenant and t.id = p_task;
    woken := v_head.state = 'waiting' and v_head.epoch > 0 and (p_operators or v_head.reason <> 'operator');
    told := v_head.state = 'running';
    if woken then
        insert into outlast.queue (lane, tenant, task) values (v_head.lane, p_tenant, p_task);
        delete from outlast.timers m where m.tenant = p_tenant and m.task = p_task and m.kind = 'wake';
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (p_tenant, p_task, p_last + 1, 'task.woken', 0, '{"reason":' || to_json(v_head.reason) || '}', p_now);
    elsif told then
        update outlast.leases l
           set news = v_head.facts + p_more
         where l.tenant = p_tenant and l.task = p_task;
    end if;
    update outlast.tasks t
       set facts = t.facts + p_more,
           last_event = case when woken then p_last + 1 else p_last end,
           state = case when woken then 'queued' else t.state end,
           reason = case when woken then null else t.reason end
     where t.tenant = p_tenant and t.id = p_task;
end
$$;

-- Forget by which switches tasks were held back, since they are over. What a delivery has taken it forgets itself.
create function outlast.release_tasks(p_tenant text[], p_task text[]) returns void language sql volatile as $$
    delete from outlast.held_tasks h
     using (select h.by_tenant, h.scope, h.tenant, h.task
              from unnest(p_tenant, p_task) as x (tenant, task)
              join outlast.held_tasks h on h.tenant = x.tenant and h.task = x.task
               for update of h skip locked) x
     where h.by_tenant = x.by_tenant and h.scope = x.scope and h.tenant = x.tenant and h.task = x.task
$$;
