-- decide, put_rule, withdraw_rule, pause, resume: what people say about calls.
--
-- Lock order: heads in the order of their names, each waited for; then approvals of those tasks. Rules and switches have
-- an advisory lock of their own, which intents share.
-- What is fenced: an approval by its state, its clock and its fingerprint, read after its head's lock was waited for.

-- Decide approvals, in the order given; answers one row for each, with the approval as it then stands.
create function outlast.decide(
    p_tenant text[], p_approval text[], p_verdict text[], p_by text[], p_fingerprint text[], p_reason text[],
    p_roles text[], p_via text[], p_arguments text[], p_shown text[], p_new_fingerprint text[], p_answer text[],
    p_now bigint
) returns table (kind text, detail text, woken boolean, told boolean, approval outlast.approvals)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint;
    v_tenants text[];
    v_tasks text[];
    v_item record;
    v_head record;
    v_row outlast.approvals;
    v_number integer;
    v_final boolean;
    v_state text;
begin
    select array_agg(a.tenant), array_agg(a.task) into v_tenants, v_tasks
      from unnest(p_tenant, p_approval) as x (tenant, approval)
      join outlast.approvals a on a.tenant = x.tenant and a.id = x.approval;
    perform outlast.lock_heads(v_tenants, v_tasks);
    v_now := coalesce(p_now, outlast.clock_us());

    for v_item in
        select s.*
          from unnest(p_tenant, p_approval, p_verdict, p_by, p_fingerprint, p_reason, p_roles, p_via, p_arguments,
                      p_shown, p_new_fingerprint, p_answer) with ordinality
               as s (tenant, approval, verdict, who, fingerprint, reason, roles, via, arguments, shown, edit, answer,
                     place)
         order by s.place
    loop
        if v_item.verdict <> 'approve' then
            v_item.edit := null;
        end if;
        kind := null;
        detail := '';
        woken := false;
        told := false;
        approval := null;
        -- One that was asked while heads were waited for is not there yet: its own head is not locked.
        select a.* into v_row
          from outlast.approvals a
         where a.tenant = v_item.tenant and a.id = v_item.approval
           and exists (select from unnest(v_tenants, v_tasks) as h (tenant, task)
                        where h.tenant = a.tenant and h.task = a.task)
           for no key update;
        if not found then
            kind := 'not_found';
            return next;
            continue;
        end if;
        select t.state, t.last_event into v_head
          from outlast.tasks t
         where t.tenant = v_row.tenant and t.id = v_row.task;

        -- An earlier word of the same person, among those that count: the only rejection, or the last of those who
        -- agree.
        if exists (
               select from (select v.who, v.fingerprint, row_number() over (order by v.number desc) as back
                              from outlast.votes v
                             where v.tenant = v_row.tenant and v.approval = v_row.id
                               and v.verdict = v_item.verdict) v
                where v.who = v_item.who and v.fingerprint = coalesce(v_item.edit, v_item.fingerprint)
                  and (v_item.verdict = 'reject'
                       or (v.back <= v_row.votes and v_item.answer is not distinct from v_row.answer)))
        then
            kind := 'repeated';
        elsif v_row.state = 'expired' then
            kind := 'expired';
        elsif v_row.state <> 'pending' or v_head.state not in ('queued', 'running', 'waiting') then
            kind := 'conflict';
        elsif v_row.expires_at <= v_now then
            kind := 'expired';
            update outlast.approvals a
               set state = 'expired'
             where a.tenant = v_row.tenant and a.id = v_row.id
            returning a.* into v_row;
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            values (v_row.tenant, v_row.task, v_head.last_event + 1, 'approval.expired', 0,
                    '{"approval":' || to_json(v_row.id) || '}', v_now);
            select r.woken, r.told into woken, told
              from outlast.raise_facts(v_row.tenant, v_row.task, 1, v_head.last_event + 1, true, v_now) r;
        elsif v_row.roles <> '{}'
              and not array(select json_array_elements_text(v_item.roles::json)) && (v_row.roles || array['*']) then
            kind := 'forbidden';
            detail := 'it takes one of the roles ' || array_to_string(v_row.roles, ', ');
        elsif v_row.four_eyes and v_row.requester = v_item.who then
            kind := 'forbidden';
            detail := 'whoever asked for it may not decide it';
        elsif v_row.fingerprint <> v_item.fingerprint then
            kind := 'fingerprint';
        elsif v_item.edit is not null
              and exists (select from outlast.operations o
                           where o.tenant = v_row.tenant and o.task = v_row.task and o.key = v_row.key
                             and o.attempt > 0)
        then
            kind := 'forbidden';
            detail := 'it was sent before, and what was sent is not changed; it can be approved as it is, or rejected';
        end if;
        if kind is not null then
            approval := v_row;
            return next;
            continue;
        end if;

        -- An edit, or another answer than was agreed to so far, asks something new: nobody has agreed to that yet.
        if v_item.edit is not null then
            v_row.arguments := v_item.arguments;
            v_row.shown := coalesce(v_item.shown, v_row.shown);
            v_row.fingerprint := v_item.edit;
            v_row.edited := true;
            v_row.votes := 0;
        end if;
        if v_item.verdict = 'approve' then
            if v_row.answer is distinct from v_item.answer then
                v_row.answer := v_item.answer;
                v_row.votes := 0;
            end if;
            v_row.votes := v_row.votes + 1;
        end if;
        v_final := v_item.verdict = 'reject' or v_row.votes >= v_row.quorum;
        v_state := case when not v_final then 'voted' when v_item.verdict = 'reject' then 'rejected'
                        else 'approved' end;
        kind := case when v_final then 'decided' else 'counted' end;
        update outlast.approvals a
           set state = case when v_final then v_state else a.state end, fingerprint = v_row.fingerprint,
               shown = v_row.shown, votes = v_row.votes, arguments = v_row.arguments, edited = v_row.edited,
               answer = v_row.answer,
               decided_at = case when v_final then v_now end, decided_by = case when v_final then v_item.who end,
               decision_reason = case when v_final then v_item.reason end
         where a.tenant = v_row.tenant and a.id = v_row.id
        returning a.* into v_row;
        select coalesce(max(v.number), 0) + 1 into v_number
          from outlast.votes v
         where v.tenant = v_row.tenant and v.approval = v_row.id;
        insert into outlast.votes (tenant, approval, number, who, verdict, fingerprint, reason, via, at)
        values (v_row.tenant, v_row.id, v_number, v_item.who, v_item.verdict, v_row.fingerprint, v_item.reason,
                v_item.via, v_now);
        insert into outlast.audit (tenant, at, who, what, subject, reason, data)
        values (v_row.tenant, v_now, v_item.who, v_item.verdict, v_row.id, v_item.reason,
                '{"fingerprint":' || to_json(v_row.fingerprint) || ',"edited":' || to_json(v_row.edited) || ',"via":'
                || to_json(v_item.via) || '}');
        if v_state = 'approved' and v_row.subject = 'call' then
            update outlast.operations o
               set state = 'approved'
             where o.tenant = v_row.tenant and o.task = v_row.task and o.key = v_row.key and o.state = 'planned';
        end if;
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        values (v_row.tenant, v_row.task, v_head.last_event + 1, 'approval.' || v_state, 0,
                '{"approval":' || to_json(v_row.id) || ',"by":' || to_json(v_item.who) || ',"fingerprint":'
                || to_json(v_row.fingerprint) || ',"edited":' || to_json(v_row.edited) || '}', v_now);
        select r.woken, r.told into woken, told
          from outlast.raise_facts(v_row.tenant, v_row.task, 1, v_head.last_event + 1, true, v_now) r;
        approval := v_row;
        return next;
    end loop;
end
$$;

-- Let a standing rule stand; answers its number. Alone, so that a list's version grows in the order of commits, and after
-- the intents that are under way.
create function outlast.put_rule(
    p_tenant text, p_tool text, p_verdict text, p_bounds text, p_by text, p_reason text, p_now bigint
) returns bigint language plpgsql volatile as $$
declare
    v_now bigint;
    v_number bigint;
begin
    perform pg_advisory_xact_lock(hashtextextended('outlast.rules', 0));
    v_now := coalesce(p_now, outlast.clock_us());
    v_number := nextval('outlast.rules_number_seq');
    insert into outlast.rules (tenant, number, tool, verdict, bounds, by_whom, reason, at, changed)
    overriding system value
    values (p_tenant, v_number, p_tool, p_verdict, p_bounds, p_by, p_reason, v_now, v_number);
    insert into outlast.audit (tenant, at, who, what, subject, reason, data)
    values (p_tenant, v_now, p_by, 'rule:' || p_verdict, p_tool, p_reason,
            '{"number":' || v_number || ',"verdict":' || to_json(p_verdict) || ',"bounds":' || to_json(p_bounds) || '}');
    return v_number;
end
$$;

-- Take a rule back; answers whether it stood.
create function outlast.withdraw_rule(p_tenant text, p_number bigint, p_by text, p_reason text, p_now bigint)
returns boolean language plpgsql volatile as $$
declare
    v_now bigint;
    v_rule record;
begin
    perform pg_advisory_xact_lock(hashtextextended('outlast.rules', 0));
    v_now := coalesce(p_now, outlast.clock_us());
    update outlast.rules r
       set withdrawn_at = v_now, changed = nextval('outlast.rules_number_seq')
     where r.tenant = p_tenant and r.number = p_number and r.withdrawn_at is null
    returning r.tool, r.verdict, r.bounds into v_rule;
    if not found then
        return false;
    end if;
    insert into outlast.audit (tenant, at, who, what, subject, reason, data)
    values (p_tenant, v_now, p_by, 'rule:withdraw', v_rule.tool, p_reason,
            '{"number":' || p_number || ',"verdict":' || to_json(v_rule.verdict) || ',"bounds":'
            || to_json(v_rule.bounds) || '}');
    return true;
end
$$;

-- Stop new intents of a scope; the very same switch again leaves no second trace. Intents under way are waited for, so
-- that none is admitted under an earlier look.
create function outlast.pause(p_tenant text, p_scope text, p_reason text, p_by text, p_now bigint)
returns void language plpgsql volatile as $$
declare
    v_now bigint;
begin
    perform pg_advisory_xact_lock(hashtextextended('outlast.rules', 0));
    v_now := coalesce(p_now, outlast.clock_us());
    insert into outlast.pauses as p (tenant, scope, reason, by_whom, at)
    values (p_tenant, p_scope, p_reason, p_by, v_now)
    on conflict (tenant, scope) do update
       set reason = excluded.reason, by_whom = excluded.by_whom, at = excluded.at
     where (p.reason, p.by_whom) <> (excluded.reason, excluded.by_whom);
    if found then
        insert into outlast.audit (tenant, at, who, what, subject, reason, data)
        values (p_tenant, v_now, p_by, 'pause:' || p_scope, p_scope, p_reason, '{}');
    end if;
end
$$;

-- Take a switch back; answers whether it stood. Intents under way are waited for: what the switch has refused is on
-- record before it goes, and is found by whoever delivers afterwards.
create function outlast.resume(p_tenant text, p_scope text, p_reason text, p_by text, p_now bigint)
returns boolean language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('outlast.rules', 0));
    delete from outlast.pauses p where p.tenant = p_tenant and p.scope = p_scope;
    if not found then
        return false;
    end if;
    insert into outlast.audit (tenant, at, who, what, subject, reason, data)
    values (p_tenant, coalesce(p_now, outlast.clock_us()), p_by, 'resume:' || p_scope, p_scope, p_reason, '{}');
    return true;
end
$$;
