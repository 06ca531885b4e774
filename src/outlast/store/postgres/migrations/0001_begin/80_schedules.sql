-- put_schedule, set_schedule, due_schedules, fire_schedules: what submits tasks by the clock.
--
-- Lock order: the schedule's row, then what submit locks (keys, then rows that are new); of several schedules in the
-- order of the batch, each in a savepoint, so that a deadlock costs one firing. Whoever only looks for what is due
-- skips rows that are locked. What is fenced: a schedule by its revision, a firing by (revision, next_at) as well,
-- under the row's lock. The last task's state is read without a lock: one that ends at this moment counts as live.

create table outlast.schedules (
    tenant text collate "C" not null check (tenant <> ''),
    id text collate "C" not null check (outlast.is_key(id)),
    revision bigint not null check (revision >= 1),
    agent text not null check (agent <> ''),
    version_asked text not null,
    pool text not null check (pool <> ''),
    priority integer not null,
    input text not null,
    user_name text,
    deadline_us bigint,
    timing text not null,
    missed text not null check (missed in ('skip', 'once', 'all')),
    max_missed integer not null check (max_missed >= 1),
    overlap text not null check (overlap in ('allow', 'skip')),
    jitter_us bigint not null check (jitter_us >= 0),
    paused text,
    paused_by text,
    next_at bigint,
    taken_until bigint not null default 0,
    last_at bigint,
    last_task text,
    fired bigint not null default 0,
    skipped bigint not null default 0,
    note text,
    noted_at bigint,
    created_at bigint not null,
    changed_at bigint not null,
    changed_by text not null,
    primary key (tenant, id),
    check ((paused is null) = (paused_by is null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);

-- What may become due, by when.
create index schedules_due on outlast.schedules (next_at, tenant, id) where paused is null and next_at is not null;

-- Make a schedule, or put another in its place, by compare-and-set on its revision. p_revision: the one that was seen,
-- 0 for none, null for any. What says the same already is left as it is.
create function outlast.put_schedule(
    p_tenant text, p_id text, p_agent text, p_version text, p_pool text, p_priority integer, p_input text, p_user text,
    p_deadline_us bigint, p_timing text, p_missed text, p_max_missed integer, p_overlap text, p_jitter_us bigint,
    p_next_at bigint, p_by text, p_reason text, p_revision bigint, p_now bigint
) returns table (kind text, revision bigint) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_row outlast.schedules;
    v_now bigint;
    v_kind text;
begin
    loop
        select s.* into v_row from outlast.schedules s where s.tenant = p_tenant and s.id = p_id for no key update;
        v_now := coalesce(p_now, outlast.clock_us());
        if found then
            if (v_row.agent, v_row.version_asked, v_row.pool, v_row.priority, v_row.input, v_row.user_name,
                v_row.deadline_us, v_row.timing, v_row.missed, v_row.max_missed, v_row.overlap, v_row.jitter_us)
               is not distinct from
               (p_agent, p_version, p_pool, p_priority, p_input, p_user, p_deadline_us, p_timing, p_missed,
                p_max_missed, p_overlap, p_jitter_us) and p_revision is distinct from 0 then
                return query select 'unchanged', v_row.revision;
                return;
            end if;
            if p_revision is distinct from v_row.revision and p_revision is not null then
                return query select 'conflict', v_row.revision;
                return;
            end if;
            update outlast.schedules s
               set revision = s.revision + 1, agent = p_agent, version_asked = p_version, pool = p_pool,
                   priority = p_priority, input = p_input, user_name = p_user, deadline_us = p_deadline_us,
                   timing = p_timing, missed = p_missed, max_missed = p_max_missed, overlap = p_overlap,
                   jitter_us = p_jitter_us, taken_until = 0, changed_at = v_now, changed_by = p_by,
                   next_at = case when s.timing = p_timing then s.next_at else p_next_at end
             where s.tenant = p_tenant and s.id = p_id;
            v_kind := 'replaced';
            exit;
        end if;
        if p_revision > 0 then
            return query select 'conflict', 0::bigint;
            return;
        end if;
        insert into outlast.schedules (tenant, id, revision, agent, version_asked, pool, priority, input, user_name,
               deadline_us, timing, missed, max_missed, overlap, jitter_us, next_at, created_at, changed_at, changed_by)
        values (p_tenant, p_id, 1, p_agent, p_version, p_pool, p_priority, p_input, p_user, p_deadline_us, p_timing,
                p_missed, p_max_missed, p_overlap, p_jitter_us, p_next_at, v_now, v_now, p_by)
        on conflict do nothing;
        if found then
            v_kind := 'created';
            exit;
        end if;
        -- A twin was quicker: it is there now.
    end loop;
    insert into outlast.audit (tenant, at, who, what, subject, reason, data)
    values (p_tenant, v_now, p_by, 'schedule:' || case v_kind when 'created' then 'create' else 'replace' end, p_id,
            p_reason, '{"revision":' || coalesce(v_row.revision, 0) + 1 || ',"agent":' || to_json(p_agent)
            || ',"timing":' || p_timing || ',"input":' || p_input || '}');
    return query select v_kind, coalesce(v_row.revision, 0) + 1;
end
$$;

-- Pause a schedule, let it go on, or delete it.
create function outlast.set_schedule(
    p_tenant text, p_id text, p_command text, p_by text, p_reason text, p_next_at bigint, p_revision bigint,
    p_now bigint
) returns table (kind text, revision bigint) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_row outlast.schedules;
    v_now bigint;
begin
    select s.* into v_row from outlast.schedules s where s.tenant = p_tenant and s.id = p_id for no key update;
    v_now := coalesce(p_now, outlast.clock_us());
    if v_row.revision is null then
        return query select 'not_found', 0::bigint;
        return;
    end if;
    if (p_command = 'pause' and (v_row.paused, v_row.paused_by) is not distinct from (p_reason, p_by))
       or (p_command = 'resume' and v_row.paused is null) then
        return query select 'unchanged', v_row.revision;
        return;
    end if;
    if p_revision is distinct from v_row.revision and p_revision is not null then
        return query select 'conflict', v_row.revision;
        return;
    end if;
    if p_command = 'delete' then
        delete from outlast.schedules s where s.tenant = p_tenant and s.id = p_id;
    elsif p_command = 'pause' then
        update outlast.schedules s
           set revision = s.revision + 1, paused = p_reason, paused_by = p_by, changed_at = v_now, changed_by = p_by
         where s.tenant = p_tenant and s.id = p_id;
    else
        update outlast.schedules s
           set revision = s.revision + 1, paused = null, paused_by = null, next_at = p_next_at, taken_until = 0,
               changed_at = v_now, changed_by = p_by
         where s.tenant = p_tenant and s.id = p_id;
    end if;
    insert into outlast.audit (tenant, at, who, what, subject, reason, data)
    values (p_tenant, v_now, p_by, 'schedule:' || p_command, p_id, p_reason,
            '{"revision":' || v_row.revision || '}');
    return query select 'done', v_row.revision + case p_command when 'delete' then 0 else 1 end;
end
$$;

-- Take schedules that are due, so that others leave them alone for a while; answers names only, since a client that is
-- frozen while it receives inputs would hold the locks. The first row says what the time is and when the next one is
-- due, and names no schedule.
create function outlast.due_schedules(p_limit integer, p_lease_us bigint, p_now bigint)
returns table (now bigint, next_due_at bigint, tenant text, id text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_now bigint := coalesce(p_now, outlast.clock_us());
    v_tenants text[];
    v_ids text[];
begin
    -- The condition stands in the statement that locks, which looks again at a row that has changed meanwhile.
    select array_agg(d.tenant), array_agg(d.id) into v_tenants, v_ids
      from (select s.tenant, s.id
              from outlast.schedules s
             where s.paused is null and s.next_at <= v_now and s.taken_until <= v_now
             order by s.next_at, s.tenant, s.id
             limit p_limit
               for no key update skip locked) d;
    return query
    select v_now,
           (select min(s.next_at) from outlast.schedules s
             where s.paused is null and s.next_at is not null and s.next_at > v_now),
           null::text, null::text;
    if v_ids is null then
        return;
    end if;
    update outlast.schedules s
       set taken_until = v_now + p_lease_us
      from unnest(v_tenants, v_ids) as d (tenant, id)
     where s.tenant = d.tenant and s.id = d.id;
    return query select null::bigint, null::bigint, d.tenant, d.id from unnest(v_tenants, v_ids) as d (tenant, id);
end
$$;

-- Fire schedules, each for one instant; answers one row for each, in order. Where there is a task id the task is
-- submitted in the same savepoint in which the schedule moves on.
create function outlast.fire_schedules(
    p_tenant text[], p_schedule text[], p_revision bigint[], p_expected bigint[], p_instant bigint[], p_next bigint[],
    p_note text[], p_task text[], p_key text[], p_digest text[], p_agent text[], p_version text[], p_pool text[],
    p_priority integer[], p_input text[], p_user text[], p_deadline_us bigint[], p_run_at bigint[], p_trace text[],
    p_announce boolean[], p_origin text[], p_lane bigint[], p_now bigint
) returns table (item integer, kind text, task text) language plpgsql volatile set lock_timeout = '2s' as $$
#variable_conflict use_column
declare
    v_row outlast.schedules;
    v_now bigint;
    v_kind text;
    v_task text;
    v_note text;
begin
    for n in 1..cardinality(p_schedule) loop
        begin
            select s.* into v_row
              from outlast.schedules s
             where s.tenant = p_tenant[n] and s.id = p_schedule[n]
               for no key update;
            v_now := coalesce(p_now, outlast.clock_us());
            v_task := '';
            v_note := p_note[n];
            if v_row.revision is distinct from p_revision[n] or v_row.next_at is distinct from p_expected[n]
               or v_row.paused is not null then
                v_kind := 'passed';
            elsif p_instant[n] > v_now then
                v_kind := 'early';
            elsif p_task[n] is null then
                v_kind := 'moved';
            elsif v_row.overlap = 'skip' and exists (
                select from outlast.tasks t
                 where t.tenant = p_tenant[n] and t.id = v_row.last_task
                   and t.state in ('queued', 'running', 'waiting')) then
                v_kind := 'skipped';
                v_task := v_row.last_task;
            else
                v_kind := 'fired';
                v_task := p_task[n];
                -- What is new has no row; this very record was accepted before.
                select case s.kind when 'accepted' then 'replayed' else s.kind end, s.task into v_kind, v_task
                  from outlast.submit(
                       p_tenant[n:n], p_task[n:n], p_key[n:n], p_digest[n:n], p_agent[n:n], p_version[n:n],
                       p_pool[n:n], p_priority[n:n], p_input[n:n], p_user[n:n], p_deadline_us[n:n], p_run_at[n:n],
                       p_trace[n:n], p_announce[n:n], p_origin[n:n], '{}', '{}', '{}', '{}', '{}', '{}', '{}',
                       p_lane[n:n]) s;
                if not found then
                    v_kind := 'fired';
                    v_task := p_task[n];
                elsif v_kind = 'conflict' then
                    v_note := 'nothing fired: the key ' || p_key[n] || ' is that of another request, of ' || v_task;
                elsif v_kind = 'lane' then
                    raise exception 'a lane is not known' using errcode = 'OLLAN';
                end if;
            end if;
            if v_kind in ('fired', 'replayed', 'conflict', 'skipped', 'moved') then
                update outlast.schedules s
                   set next_at = p_next[n],
                       taken_until = case when p_next[n] = p_expected[n] then s.taken_until else 0 end,
                       last_at = case when v_kind in ('fired', 'replayed') then p_instant[n] else s.last_at end,
                       last_task = case when v_kind in ('fired', 'replayed') then v_task else s.last_task end,
                       fired = s.fired + case v_kind when 'fired' then 1 else 0 end,
                       skipped = s.skipped + case v_kind when 'skipped' then 1 else 0 end,
                       note = coalesce(v_note, s.note),
                       noted_at = case when v_note is null then s.noted_at else v_now end
                 where s.tenant = p_tenant[n] and s.id = p_schedule[n];
            end if;
        exception when lock_not_available or deadlock_detected then
            v_kind := 'busy';
            v_task := '';
        end;
        return query select n, v_kind, v_task;
    end loop;
end
$$;
