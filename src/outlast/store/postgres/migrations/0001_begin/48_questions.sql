-- Questions to people, as a flush writes them: asked anew, and over by the clock.
--
-- Lock order: flush holds the head of each task; then rows of that task only. What is fenced: only entries of heads that
-- compared equal (p_ok) are written.

-- Write the questions of one wave of a flush, and expire those whose time is over. Answers what comes of each entry:
-- an event that it says (after its own), a refusal by name, or that it is a repeat and says nothing at all.
create function outlast.write_questions(
    p_rare json, p_wave integer, p_ok boolean[], p_epoch bigint[], p_now bigint
) returns table (place bigint, what text, kind text, data text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_item record;
    v_row record;
    v_id text;
begin
    for v_item in
        select x.*
          from json_to_recordset(p_rare -> 'asks')
               as x (place bigint, wave integer, tenant text, task text, key text, position integer, kind text,
                     name text, request text, arguments text, number integer, subject text, fingerprint text,
                     shown text, reason text, policy text, target text, roles json, quorum integer,
                     four_eyes boolean, requester text, expires_in bigint)
         where x.wave = p_wave and p_ok[x.place >> 20]
         order by x.place
    loop
        v_id := v_item.task || ':' || v_item.key || '~' || v_item.number;
        if exists (select from outlast.approvals a where a.tenant = v_item.tenant and a.id = v_id) then
            return query select v_item.place, 'silent', null::text, null::text;
            continue;
        end if;
        insert into outlast.operations as o (tenant, task, key, position, kind, name, state, request, epoch, arguments,
               created_at, due_at)
        values (v_item.tenant, v_item.task, v_item.key, v_item.position, v_item.kind, v_item.name,
                case v_item.subject when 'question' then 'running' else 'planned' end, v_item.request,
                p_epoch[v_item.place >> 20], v_item.arguments, p_now,
                case v_item.subject when 'question' then p_now + v_item.expires_in end)
        on conflict (tenant, task, key) do update
           set kind = excluded.kind, name = excluded.name, state = excluded.state, request = excluded.request,
               epoch = excluded.epoch, arguments = excluded.arguments, result = null, error = null,
               due_at = excluded.due_at, ended_at = null, settled_by = null
         where o.state in ('planned', 'approved') or (o.state = 'running' and o.attempt = 0);
        -- What was sent stays as it was sent, and may be asked about as long as nobody knows of it.
        if not found and not exists (
               select from outlast.operations o
                where o.tenant = v_item.tenant and o.task = v_item.task and o.key = v_item.key
                  and o.state = 'unknown')
        then
            return query select v_item.place, 'silent', null::text, null::text;
            continue;
        end if;
        for v_row in
            select a.id
              from outlast.approvals a
             where a.tenant = v_item.tenant and a.task = v_item.task and a.key = v_item.key
               and (a.state = 'pending' or (a.state = 'approved' and a.subject = 'call'))
             order by a.number
        loop
            update outlast.approvals a set state = 'withdrawn' where a.tenant = v_item.tenant and a.id = v_row.id;
            return query select v_item.place, 'says', 'approval.withdrawn',
                '{"approval":' || to_json(v_row.id) || '}';
        end loop;
        insert into outlast.approvals (tenant, id, task, key, number, subject, state, name, fingerprint, shown, reason,
               policy, target, roles, quorum, four_eyes, requester, created_at, expires_at)
        values (v_item.tenant, v_id, v_item.task, v_item.key, v_item.number, v_item.subject, 'pending', v_item.name,
                v_item.fingerprint, v_item.shown, v_item.reason, v_item.policy, v_item.target,
                array(select json_array_elements_text(v_item.roles)), v_item.quorum, v_item.four_eyes,
                v_item.requester, p_now, p_now + v_item.expires_in);
        return query select v_item.place, 'says', 'approval.requested',
            '{"approval":' || to_json(v_id) || ',"operation":' || to_json(v_item.key) || ',"tool":'
            || to_json(v_item.name) || ',"reason":' || to_json(v_item.reason) || '}';
    end loop;

    for v_item in
        select x.*
          from json_to_recordset(p_rare -> 'expiries')
               as x (place bigint, wave integer, tenant text, task text, key text, number integer)
         where x.wave = p_wave and p_ok[x.place >> 20]
         order by x.place
    loop
        select a.id, a.state, a.expires_at, a.state = 'approved' and a.subject = 'question' as answered into v_row
          from outlast.approvals a
         where a.tenant = v_item.tenant and a.task = v_item.task and a.key = v_item.key
           and a.number = v_item.number;
        if v_row.state in ('pending', 'approved') and v_row.expires_at <= p_now and not v_row.answered then
            update outlast.approvals a set state = 'expired' where a.tenant = v_item.tenant and a.id = v_row.id;
            return query select v_item.place, 'says', 'approval.expired', '{"approval":' || to_json(v_row.id) || '}';
        elsif v_row.state is distinct from 'expired' then
            return query select v_item.place, 'refused', 'not_expired', null::text;
        end if;
    end loop;

    -- Questions that nobody needs to decide any more.
    for v_row in
        select x.place, a.tenant, a.id
          from json_to_recordset(p_rare -> 'closes') as x (place bigint, wave integer, tenant text, task text, key text)
          join outlast.approvals a on a.tenant = x.tenant and a.task = x.task and a.key = x.key
         where x.wave = p_wave and p_ok[x.place >> 20]
           and (a.state = 'pending' or (a.state = 'approved' and a.subject = 'call'))
         order by x.place, a.number
    loop
        update outlast.approvals a set state = 'withdrawn' where a.tenant = v_row.tenant and a.id = v_row.id;
        return query select v_row.place, 'says', 'approval.withdrawn', '{"approval":' || to_json(v_row.id) || '}';
    end loop;
end
$$;
