-- flush: entries of many tasks under one fencing check each, numbered by their writer.
--
-- Lock order: the writer's advisory lock; heads with skip locked, so that nobody's lock stalls the others and two
-- batches cannot deadlock; where there are intents, the standing rules' advisory lock, shared; business keys that nobody
-- holds, by name; rows of locked heads only; last, outside sessions by name, waits of providers by name, then counts by
-- tenant and tool. What an ending means for other tasks is left as a post, so that no head is waited for. A business key
-- that is held is written only under its holder's head, and who wants it is refused without waiting. Successes that stand
-- no more are forgotten by whoever holds their key.
-- What is fenced: every statement below writes rows of heads whose locked epoch is the one given and which run.
--
-- An entry is named by one number, its place: the index of its head (from 1) times 2^20 plus its own index (from 0). What
-- is known of a head (h_tenant, h_ok, h_last, ...) is read from arrays by that index.
-- Entries that concern one operation are parted into waves by the caller, so that within a wave each operation is
-- touched in the order record, outcome, turn, intent, and by each kind once. The arrays of a group of which a batch has
-- nothing are null, since an array costs a little also where it is empty. What most batches have nothing of comes as one
-- JSON text, null for nothing: what records take from inboxes and of what is on its way to them, heads whose end its
-- parent is told of by their worker, and, in a part of their own that is looked into again and again, questions, what
-- lost a race, consents, resends, calls taken over, outside sessions, usage, how long effects take to show, verdicts on
-- work.

-- Write a numbered batch; answers its verdicts in short, the recorded ones when it was applied before.
create function outlast.flush(
    p_writer text, p_number bigint, p_now bigint, p_waves integer,
    -- heads, and how many events are said of each that goes on
    h_tenant text[], h_task text[], h_epoch bigint[], h_said integer[],
    -- events, and which of its head's each one is
    v_place bigint[], v_nth integer[], v_kind text[], v_data text[],
    -- records
    r_place bigint[], r_wave integer[], r_key text[], r_position integer[], r_kind text[], r_name text[],
    r_state text[], r_request text[], r_arguments text[], r_result text[], r_error text[], r_due_in bigint[],
    r_due_at bigint[],
    -- outcomes
    o_place bigint[], o_wave integer[], o_key text[], o_attempt integer[], o_turn integer[], o_state text[],
    o_result text[], o_error text[], o_settled_by text[],
    -- of those, the ones whose sender is gone, and the waits that came with them
    g_place bigint[],
    w_place bigint[], w_provider text[], w_us bigint[],
    -- turns
    t_place bigint[], t_wave integer[], t_key text[], t_attempt integer[], t_turn integer[], t_reason text[],
    -- intents
    i_place bigint[], i_wave integer[], i_key text[], i_position integer[], i_kind text[], i_name text[],
    i_request text[], i_decision text[], i_effect text[], i_arguments text[], i_timeout bigint[],
    i_attempt integer[], i_turn integer[], i_business text[], i_heard bigint[],
    -- of those, the ones that honour a provider's waits, and the ones that want a business key
    a_place bigint[], a_wave integer[], a_provider text[],
    b_place bigint[], b_wave integer[], b_key text[], b_tool text[], b_value text[], b_mode text[], b_window bigint[],
    b_repeat boolean[],
    -- notes
    n_place bigint[], n_key text[], n_attempt integer[], n_source text[], n_data text[],
    -- ends, how many events are said before each, and keys that they open again
    e_place bigint[], e_said integer[], e_end text[], e_state text[], e_reason text[], e_facts bigint[],
    e_result text[], e_error text[], e_wake_in bigint[], e_at_latest boolean[],
    k_place bigint[], k_key text[],
    p_more text
) returns text language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_heads integer := coalesce(cardinality(h_task), 0);
    v_count integer;
    v_now bigint;
    v_last_number bigint;
    v_verdicts text;
    v_refused bigint[] := '{}';
    v_names text[] := '{}';
    v_places bigint[];
    v_more text[];
    v_wave integer;
    v_keyed boolean;
    v_paused boolean;
    v_waits boolean;
    v_near bigint[];
    u_tenant text[];
    u_task text[];
    u_key text[];
    s_tenant text[] := '{}';
    s_provider text[] := '{}';
    s_until bigint[] := '{}';
    h_at tid[];
    h_ok boolean[];
    h_last bigint[];
    h_round integer[];
    h_facts bigint[];
    h_lane bigint[];
    h_deadline bigint[];
    l_head integer[];
    f_head integer[];
    f_code text[];
    x_head integer[];
    x_said integer[];
    x_more integer[];
    x_tenant text[];
    x_task text[];
    x_state text[];
    x_reason text[];
    x_end text[];
    x_open integer[];
    x_due bigint[];
    x_announce boolean[];
    x_result text[];
    x_error text[];
    x_parent text[];
    x_parent_key text[];
    v_over boolean;
    v_undone json;
    v_kin boolean;
    v_left boolean := false;
    v_heard integer[] := '{}';
    v_ends json;
    v_marked integer[];
    v_undoing integer[];
    v_parents integer[];
    v_stopped bigint[] := '{}';
    m_head integer[] := '{}';
    m_said text[] := '{}';
    v_cancel record;
    v_rare json;
    v_ruled boolean;
    d_place bigint[] := '{}';
    i_visible bigint[] := '{}';
    z_place bigint[] := '{}';
    c_place bigint[] := '{}';
    c_policy text[];
    c_rules bigint[];
    c_number integer[];
    c_fingerprint text[];
    q_place bigint[] := '{}';
    q_what text[] := '{}';
    q_kind text[] := '{}';
    q_data text[] := '{}';
    a_head integer[];
    a_id text[];
    o_usage text[];
    j_head integer[];
    j_kind text[];
    j_data text[];
begin
    -- One backend at a time for a writer: a backend whose client is gone, and which may still be about to commit, is
    -- waited for. What it wrote is looked for afterwards, in a new statement.
    perform pg_advisory_xact_lock(hashtextextended(p_writer, 1));
    select w.number, w.verdicts into v_last_number, v_verdicts
      from outlast.writers w
     where w.id = p_writer
     order by w.number desc
     limit 1;
    if v_last_number = p_number then
        return v_verdicts;
    elsif v_last_number <> p_number - 1 then
        raise exception 'batch % of writer % does not follow batch %', p_number, p_writer, v_last_number
            using errcode = 'OLSEQ';
    end if;

    -- Lock the heads, and compare. Where each one lies is kept: nobody moves it until we write it.
    with locked as materialized (
        select h.head, t.ctid as at, t.epoch = h.epoch and t.state = 'running' as ok, t.last_event, t.round,
               t.facts, t.lane, coalesce(t.deadline_at, 9223372036854775807) as deadline_at, t.cancelling,
               t.undoing, t.children
          from unnest(h_tenant, h_task, h_epoch) with ordinality as h (tenant, task, epoch, head)
          join outlast.tasks t on t.tenant = h.tenant and t.id = h.task
           for no key update of t skip locked)
    select count(*), array_agg(l.head order by l.head), array_agg(l.at order by l.head),
           array_agg(l.ok order by l.head), array_agg(l.last_event order by l.head), array_agg(l.round order by l.head),
           array_agg(l.facts order by l.head), array_agg(l.lane order by l.head),
           array_agg(l.deadline_at order by l.head),
           array_agg(l.head) filter (where l.cancelling and l.ok), array_agg(l.head) filter (where l.undoing and l.ok),
           array_agg(l.head) filter (where l.children > 0)
      into v_count, l_head, h_at, h_ok, h_last, h_round, h_facts, h_lane, h_deadline, v_marked, v_undoing, v_parents
      from locked l;

    -- Heads that somebody else holds, or that do not exist: deferred while the epoch that can be seen is still ours.
    if v_count < v_heads then
        select array_agg(l.at order by h.head), array_agg(coalesce(l.ok, false) order by h.head),
               array_agg(coalesce(l.last, 0) order by h.head), array_agg(coalesce(l.round, 0) order by h.head),
               array_agg(coalesce(l.facts, 0) order by h.head), array_agg(coalesce(l.lane, 0) order by h.head),
               array_agg(coalesce(l.deadline, 0) order by h.head),
               array_agg(h.head order by h.head) filter (where l.head is null and held.task is not null)
          into h_at, h_ok, h_last, h_round, h_facts, h_lane, h_deadline, f_head
          from unnest(h_tenant, h_task, h_epoch) with ordinality as h (tenant, task, epoch, head)
          left join unnest(l_head, h_at, h_ok, h_last, h_round, h_facts, h_lane, h_deadline)
               as l (head, at, ok, last, round, facts, lane, deadline) on l.head = h.head
          left join lateral (
               select t.id as task
                 from outlast.tasks t
                where t.tenant = h.tenant and t.id = h.task and t.epoch = h.epoch and t.state = 'running'
                  and l.head is null) held on true;
    end if;
    -- One letter a head: accepted and running, deferred, stale; endings are put in below.
    if false = any(h_ok) then
        select array_agg(s.head), array_agg(s.code) into f_head, f_code
          from (select h.head::integer, case when h.head = any(coalesce(f_head, '{}')) then 'd' else 'x' end as code
                  from unnest(h_ok) with ordinality as h (ok, head)
                 where not h.ok) s;
    end if;

    -- Where a cancel stands no gate is admitted but an undo's, and whatever ends the attempt ends it as cancelled. A task
    -- that has still to undo what it has done is released and suspended as any other; its worker's error says what was
    -- undone, also where the cancel came while it undid for another reason.
    if v_marked is not null then
        v_stopped := array(
            select x.place
              from unnest(i_place, i_kind) as x (place, kind)
             where (x.place >> 20)::integer = any(v_marked) and x.kind <> 'compensation');
        for n in 1..coalesce(cardinality(e_place), 0) loop
            continue when (e_place[n] >> 20)::integer <> all(v_marked);
            v_over := (e_place[n] >> 20)::integer = any(v_undoing);
            continue when v_over and e_state[n] not in ('succeeded', 'failed', 'cancelled');
            select c.said, c.error
              into v_cancel
              from outlast.cancel_said(h_tenant[e_place[n] >> 20], h_task[e_place[n] >> 20]) c;
            e_end[n] := 'cancelled';
            e_state[n] := 'cancelled';
            e_result[n] := null;
            v_undone := e_error[n]::json -> 'compensation';
            if (e_error[n]::json ->> 'code') is distinct from 'cancelled' then
                -- It had not heard of the cancel.
                e_error[n] := case when v_undone is null then v_cancel.error
                                   else left(v_cancel.error, -1) || ',"compensation":' || v_undone || '}' end;
            elsif v_undone is null and v_over is not true then
                e_error[n] := v_cancel.error;
            end if;
            m_head := m_head || (e_place[n] >> 20)::integer;
            m_said := m_said || v_cancel.said;
        end loop;
        select coalesce(array_agg(x.place), '{}'), array_agg(x.key)
          into k_place, k_key
          from unnest(k_place, k_key) as x (place, key)
         where (x.place >> 20)::integer <> all(m_head);
    end if;

    -- What is taken from inboxes, and what most batches have nothing of.
    if p_more is not null then
        -- A record that will replace nothing takes nothing. Operations are looked up one by one (what a limit keeps
        -- apart is not joined by reading the whole ledger), whatever was known of the table when this was planned.
        update outlast.inbox b
           set taken_by = x.key
          from (select distinct on (t.tenant, t.task, t.number) t.tenant, t.task, t.number, t.key
                  from (select t.place, h_tenant[t.place >> 20] as tenant, h_task[t.place >> 20] as task, t.key, t.number
                          from json_to_recordset(p_more::json -> 'takes') as t (place bigint, key text, number bigint)) t
                  left join lateral (
                       select o.key, o.state, o.attempt
                         from outlast.operations o
                        where o.tenant = t.tenant and o.task = t.task and o.key = t.key
                        limit 1) o on true
                 where h_ok[t.place >> 20]
                   and (o.key is null or o.state in ('planned', 'approved')
                        or (o.state = 'running' and o.attempt = 0))
                 order by t.tenant, t.task, t.number, t.place) x
         where b.tenant = x.tenant and b.task = x.task and b.number = x.number and b.taken_by is null;
        v_rare := p_more::json -> 'rare';
        v_heard := coalesce((p_more::json ->> 'heard')::integer[], '{}');

        -- Ends of children that their parent's worker has heard of by itself are taken where they lie: mostly on their
        -- way. One that is just being delivered is left to whoever does that, and who waits for this head.
        v_ends := p_more::json -> 'ends';
        if v_ends is not null then
            with ends as materialized (
                select x.place, x.tenant, x.task, x.key
                  from unnest((v_ends ->> 'place')::bigint[], (v_ends ->> 'tenant')::text[],
                              (v_ends ->> 'task')::text[], (v_ends ->> 'key')::text[]) as x (place, tenant, task, key)
                 where h_ok[x.place >> 20]
            ), there as materialized (
                select p.tenant, p.task, p.name, p.at
                  from ends e
                 cross join lateral (
                       select p.tenant, p.task, p.name, p.ctid as at
                         from outlast.posts p
                        where p.tenant = e.tenant and p.task = e.task and p.name = e.key and p.kind = 'child'
                        order by p.seq
                        limit 1
                          for update skip locked) p
            ), gone as (
                delete from outlast.posts p
                 using there t
                 where p.ctid = t.at
            )
            select array_agg(e.place) into v_places
              from ends e
             where (select count(*) from there) < (select count(*) from ends)
               and not exists (select from there t
                                where t.tenant = e.tenant and t.task = e.task and t.name = e.key);
            if v_places is not null then
                update outlast.inbox b
                   set taken_by = x.key
                  from unnest((v_ends ->> 'place')::bigint[], (v_ends ->> 'tenant')::text[],
                              (v_ends ->> 'task')::text[], (v_ends ->> 'key')::text[]) as x (place, tenant, task, key)
                 where h_ok[x.place >> 20] and x.place = any(v_places)
                   and b.tenant = x.tenant and b.task = x.task and b.taken_by is null and b.kind = 'child'
                   and b.name = x.key;
            end if;
        end if;
    end if;
    if v_rare is not null then
        z_place := array(select x.place::bigint from json_array_elements_text(v_rare -> 'losses') as x (place));
        o_usage := array(select x.usage from json_array_elements_text(v_rare -> 'usages') as x (usage));
        i_visible := array(select x.us::bigint from json_array_elements_text(v_rare -> 'visibles') as x (us));
        d_place := array(select x.place::bigint from json_array_elements_text(v_rare -> 'resends') as x (place));
        select coalesce(array_agg(x.place), '{}'), array_agg(x.policy), array_agg(x.rules), array_agg(x.approval),
               array_agg(x.fingerprint)
          into c_place, c_policy, c_rules, c_number, c_fingerprint
          from json_to_recordset(v_rare -> 'consents')
               as x (place bigint, policy text, rules bigint, approval integer, fingerprint text);
    end if;

    -- What intents have to ask for is looked up once, and not at all where nobody asks. Whoever changes a standing rule
    -- waits for the intents that are under way, and these for the change: a rule stands for every intent after it.
    if i_place <> '{}' then
        perform pg_advisory_xact_lock_shared(hashtextextended('outlast.rules', 0));
        v_paused := exists (select from outlast.pauses);
        v_ruled := exists (select from outlast.rules);
    end if;
    if a_place <> '{}' then
        v_waits := exists (select from outlast.provider_waits);
    end if;
    if b_place <> '{}' then
        -- Reserve keys that nobody holds. Whoever is about to commit one of them is waited for, in the order of names.
        insert into outlast.business_keys (tenant, tool, value, mode, task, key, state)
        select distinct h_tenant[x.place >> 20] collate "C", x.tool collate "C", x.value collate "C", 'lock', '', '',
               'held'
          from unnest(b_place, b_tool, b_value) as x (place, tool, value)
         where h_ok[x.place >> 20]
           and not exists (select from outlast.business_keys b
                            where b.tenant = h_tenant[x.place >> 20] and b.tool = x.tool
                              and b.value = x.value and b.state = 'held')
         order by 1, 2, 3
        on conflict do nothing;
        -- Look: the reserved ones and what tasks of this batch hold can be had; whatever becomes of the others
        -- meanwhile, they are held by somebody else. While one is reserved or held, nobody else comes to have it.
        v_near := array(
            select x.place
              from unnest(b_place, b_tool, b_value) as x (place, tool, value)
              join outlast.business_keys b
                on b.tenant = h_tenant[x.place >> 20] and b.tool = x.tool and b.value = x.value
             where h_ok[x.place >> 20] and b.state = 'held'
               and (b.task = ''
                    or exists (select from unnest(h_tenant, h_task, h_ok) as h (tenant, task, ok)
                                where h.ok and h.tenant = b.tenant and h.task = b.task)));
    end if;

    -- The time that judges, behind the last wait for what intents ask for.
    v_now := coalesce(p_now, outlast.clock_us());

    for v_wave in 0..p_waves - 1 loop
        if v_rare is not null then
            select q_place || coalesce(array_agg(q.place), '{}'), q_what || coalesce(array_agg(q.what), '{}'),
                   q_kind || coalesce(array_agg(q.kind), '{}'), q_data || coalesce(array_agg(q.data), '{}'),
                   v_refused || coalesce(array_agg(q.place) filter (where q.what = 'refused'), '{}'),
                   v_names || coalesce(array_agg(q.kind) filter (where q.what = 'refused'), '{}')
              into q_place, q_what, q_kind, q_data, v_refused, v_names
              from (select * from outlast.write_questions(v_rare, v_wave, h_ok, h_epoch, v_now)
                     union all
                    select * from outlast.take_over(v_rare, v_wave, h_ok, h_epoch, v_now)) q;
        end if;

        -- Records. They compare nothing, so they replace only what nothing was sent for: no ended operation, and no
        -- attempt that has begun.
        if r_place <> '{}' then
            with done as (
                insert into outlast.operations as o (tenant, task, key, position, kind, name, state, request, epoch,
                       arguments, result, error, created_at, due_at, ended_at, lost)
                select h_tenant[r.place >> 20], h_task[r.place >> 20], r.key, r.position, r.kind, r.name, r.state,
                       r.request, h_epoch[r.place >> 20], r.arguments, r.result, r.error, v_now,
                       coalesce(r.due_at, v_now + r.due_in),
                       case when r.state in ('succeeded', 'failed') then v_now end, r.place = any(z_place)
                  from unnest(r_place, r_wave, r_key, r_position, r_kind, r_name, r_state, r_request,
                              r_arguments, r_result, r_error, r_due_in, r_due_at)
                       as r (place, wave, key, position, kind, name, state, request, arguments, result,
                             error, due_in, due_at)
                 where h_ok[r.place >> 20] and r.wave = v_wave
                on conflict (tenant, task, key) do update
                   set kind = excluded.kind, name = excluded.name, state = excluded.state, request = excluded.request,
                       epoch = excluded.epoch, arguments = excluded.arguments, result = excluded.result,
                       error = excluded.error, due_at = excluded.due_at, ended_at = excluded.ended_at,
                       settled_by = null, lost = excluded.lost
                 where o.state in ('planned', 'approved') or (o.state = 'running' and o.attempt = 0)
                returning o.tenant, o.task, o.key, o.state, o.business_key)
            select array_agg(d.tenant), array_agg(d.task), array_agg(d.key) into u_tenant, u_task, u_key
              from done d
             where d.business_key is not null and d.state in ('succeeded', 'failed');
            -- It ends without a call; what an earlier attempt held is nobody's any more.
            if u_key is not null then
                perform outlast.settle_keys(u_tenant, u_task, u_key,
                                            array_fill('failed'::text, array[cardinality(u_key)]), v_now);
            end if;
        end if;

        -- Outcomes, by compare-and-set; the reconciliation queue follows.
        if o_place <> '{}' then
            with done as (
                update outlast.operations o
                   set state = x.state, result = x.result, error = x.error, turn = o.turn + 1,
                       ended_at = case when x.state in ('succeeded', 'failed') then v_now end,
                       settled_by = x.settled_by, usage = coalesce(x.usage, o.usage)
                  from unnest(o_place, o_wave, o_key, o_attempt, o_turn, o_state, o_result, o_error,
                              o_settled_by, o_usage)
                       as x (place, wave, key, attempt, turn, state, result, error, settled_by, usage)
                 where h_ok[x.place >> 20] and x.wave = v_wave
                   and o.tenant = h_tenant[x.place >> 20] and o.task = h_task[x.place >> 20] and o.key = x.key
                   and o.attempt = x.attempt and o.turn = x.turn and o.state in ('running', 'unknown')
                   and (o.state = 'running' or x.state <> 'planned')
                   and (x.state not in ('failed', 'planned')
                        or outlast.word_stands(o.tenant, o.task, o.key, o.attempt, o.effect) is not true)
                returning x.place, o.tenant, o.task, o.key, o.attempt, o.state, o.business_key
            ), opened as (
                insert into outlast.unsettled as u (tenant, task, key, since, ask_at, sender_gone)
                select d.tenant, d.task, d.key, v_now, v_now,
                       coalesce(d.place = any(g_place), false) or outlast.said_over(d.tenant, d.task, d.key, d.attempt)
                  from done d
                 where d.state = 'unknown'
                on conflict (tenant, task, key) do update
                   set sender_gone = true
                 where excluded.sender_gone and not u.sender_gone
            ), closed as (
                delete from outlast.unsettled u
                 using done d
                 where d.state <> 'unknown' and u.tenant = d.tenant and u.task = d.task and u.key = d.key
            )
            select coalesce(array_agg(d.place), '{}'), coalesce(bool_or(d.business_key is not null), false)
              into v_places, v_keyed
              from done d;
            if v_keyed then
                perform outlast.settle_keys(array_agg(h_tenant[x.place >> 20]), array_agg(h_task[x.place >> 20]),
                                            array_agg(x.key), array_agg(x.state), v_now)
                   from unnest(o_place, o_key, o_state) as x (place, key, state)
                  where x.place = any(v_places);
            end if;
            if w_place <> '{}' then
                select s_tenant || coalesce(array_agg(h_tenant[x.place >> 20]), '{}'),
                       s_provider || coalesce(array_agg(x.provider), '{}'),
                       s_until || coalesce(array_agg(v_now + x.us), '{}')
                  into s_tenant, s_provider, s_until
                  from unnest(w_place, w_provider, w_us) as x (place, provider, us)
                 where x.place = any(v_places);
            end if;
            if cardinality(v_places) < cardinality(o_place) then
                v_places := array(select x.place from unnest(o_place, o_wave) as x (place, wave)
                                   where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places));
                v_refused := v_refused || v_places;
                v_names := v_names || array_fill('turn_passed'::text, array[cardinality(v_places)]);
            end if;
        end if;

        -- Turns, by compare-and-set.
        if t_place <> '{}' then
            with done as (
                update outlast.operations o
                   set state = 'unknown', turn = o.turn + 1
                  from unnest(t_place, t_wave, t_key, t_attempt, t_turn, t_reason)
                       as x (place, wave, key, attempt, turn, reason)
                 where h_ok[x.place >> 20] and x.wave = v_wave
                   and o.tenant = h_tenant[x.place >> 20] and o.task = h_task[x.place >> 20] and o.key = x.key
                   and o.attempt = x.attempt and o.turn = x.turn and o.state in ('running', 'unknown')
                returning x.place, o.tenant, o.task, o.key, o.attempt, x.reason
            ), opened as (
                insert into outlast.unsettled (tenant, task, key, since, ask_at, sender_gone, why)
                select d.tenant, d.task, d.key, v_now, v_now,
                       outlast.said_over(d.tenant, d.task, d.key, d.attempt), d.reason
                  from done d
                on conflict do nothing
            )
            select coalesce(array_agg(d.place), '{}') into v_places from done d;
            if cardinality(v_places) < cardinality(t_place) then
                v_places := array(select x.place from unnest(t_place, t_wave) as x (place, wave)
                                   where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places));
                v_refused := v_refused || v_places;
                v_names := v_names || array_fill('turn_passed'::text, array[cardinality(v_places)]);
            end if;
        end if;

        -- Intents: look first (whoever writes operations holds their head, so this cannot change any more), then write
        -- those admitted.
        if i_place <> '{}' then
            select coalesce(array_agg(g.place), '{}'), coalesce(array_agg(g.name), '{}') into v_places, v_more
              from (select x.place,
                           case when h_deadline[x.place >> 20] <= v_now then 'deadline'
                                when x.place = any(v_stopped) then 'cancelled'
                                when coalesce(o.attempt, 0) <> x.attempt or coalesce(o.turn, 0) <> x.turn
                                     or (x.attempt > 0 and x.effect not in ('read', 'idempotent')
                                         and outlast.word_stands(h_tenant[x.place >> 20], h_task[x.place >> 20], x.key,
                                                                 x.attempt, o.effect))
                                     or case when x.place = any(d_place) then o.state is distinct from 'unknown'
                                             else o.state not in ('planned', 'approved') end
                                    then 'not_planned'
                                when h_facts[x.place >> 20] > x.heard then 'news' end as name
                      from unnest(i_place, i_wave, i_key, i_attempt, i_turn, i_effect, i_heard)
                           as x (place, wave, key, attempt, turn, effect, heard)
                      left join outlast.operations o
                        on o.tenant = h_tenant[x.place >> 20] and o.task = h_task[x.place >> 20] and o.key = x.key
                     where h_ok[x.place >> 20] and x.wave = v_wave) g
             where g.name is not null;
            v_refused := v_refused || v_places;
            v_names := v_names || v_more;

            -- What is left is asked for a switch, a wait, the standing rules, its decision, then for its business key.
            if v_paused then
                -- By what is kept here whoever takes the switch back finds the task.
                with held as materialized (
                    select x.place, h_tenant[x.place >> 20] as tenant, h_task[x.place >> 20] as task,
                           p.tenant as by_tenant, p.scope
                      from unnest(i_place, i_wave, i_name) as x (place, wave, name)
                     cross join lateral (
                           select p.tenant, p.scope
                             from outlast.pauses p
                            where p.tenant in (h_tenant[x.place >> 20], '*') and p.scope in ('all', 'tool:' || x.name)
                            order by p.tenant, p.scope
                            limit 1) p
                     where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places)
                ), kept as (
                    insert into outlast.held_tasks (by_tenant, scope, tenant, task)
                    select distinct h.by_tenant, h.scope, h.tenant, h.task from held h
                    on conflict do nothing
                )
                select coalesce(array_agg(h.place::text), '{}') into v_more from held h;
                v_places := v_places || v_more::bigint[];
                v_refused := v_refused || v_more::bigint[];
                v_names := v_names || array_fill('paused'::text, array[cardinality(v_more)]);
            end if;
            if a_place <> '{}' and (v_waits or s_until <> '{}') then
                with held as (
                    select x.place, 'held ' || max(w.until_at) - v_now as name
                      from unnest(a_place, a_wave, a_provider) as x (place, wave, provider)
                     cross join lateral (
                           select w.until_at
                             from outlast.provider_waits w
                            where w.tenant = h_tenant[x.place >> 20] and w.provider = x.provider
                            union all
                           select s.until_at
                             from unnest(s_tenant, s_provider, s_until) as s (tenant, provider, until_at)
                            where s.tenant = h_tenant[x.place >> 20] and s.provider = x.provider) w
                     where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places) and w.until_at > v_now
                     group by x.place)
                select v_places || coalesce(array_agg(h.place), '{}'), v_refused || coalesce(array_agg(h.place), '{}'),
                       v_names || coalesce(array_agg(h.name), '{}')
                  into v_places, v_refused, v_names
                  from held h;
            end if;
            if v_ruled or c_place <> '{}' then
                with judged as (
                    select x.place,
                           case when c.place is null then
                                    case when exists (select from outlast.rules r
                                                       where r.tenant = h_tenant[x.place >> 20] and r.tool = x.name
                                                         and r.withdrawn_at is null) then 'rules_changed' end
                                when c.rules <> coalesce((select max(r.changed) from outlast.rules r
                                                           where r.tenant = h_tenant[x.place >> 20]
                                                             and r.tool = x.name), 0)
                                    then 'rules_changed'
                                when c.number is not null and not exists (
                                         select from outlast.approvals a
                                          where a.tenant = h_tenant[x.place >> 20]
                                            and a.task = h_task[x.place >> 20] and a.key = x.key
                                            and a.number = c.number and a.subject = 'call'
                                            and (a.state = 'approved'
                                                 or (a.state = 'used' and not a.spent and x.attempt > 0))
                                            and a.fingerprint = c.fingerprint and a.policy = c.policy
                                            and coalesce(a.expires_at > v_now, true))
                                    then 'no_approval'
                                when c.number is null and exists (
                                         -- Whatever else allows it has not heard that a person has refused it.
                                         select from outlast.approvals a
                                          where a.tenant = h_tenant[x.place >> 20]
                                            and a.task = h_task[x.place >> 20] and a.key = x.key
                                            and a.subject = 'call' and a.state = 'rejected' and not a.spent
                                            and a.fingerprint = x.decision and a.policy = c.policy)
                                    then 'no_approval' end as name
                      from unnest(i_place, i_wave, i_key, i_name, i_attempt, i_decision)
                           as x (place, wave, key, name, attempt, decision)
                      left join unnest(c_place, c_policy, c_rules, c_number, c_fingerprint)
                           as c (place, policy, rules, number, fingerprint) on c.place = x.place
                     where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places))
                select v_places || coalesce(array_agg(j.place), '{}'), v_refused || coalesce(array_agg(j.place), '{}'),
                       v_names || coalesce(array_agg(j.name), '{}')
                  into v_places, v_refused, v_names
                  from judged j
                 where j.name is not null;
            end if;
            if b_place <> '{}' then
                with judged as (
                    select x.place, h_tenant[x.place >> 20] as tenant, x.tool, x.value,
                           case when x.place <> all(v_near) or others.open then 'key_held'
                                when others.done and not x.repeat then 'key_done' end as name
                      from unnest(b_place, b_wave, b_key, b_tool, b_value, b_repeat)
                           as x (place, wave, key, tool, value, repeat)
                     cross join lateral (
                           select bool_or(b.state <> 'done') as open, bool_or(b.until_at > v_now) as done
                             from outlast.business_keys b
                            where b.tenant = h_tenant[x.place >> 20] and b.tool = x.tool and b.value = x.value
                              and b.task <> '' and not (b.task = h_task[x.place >> 20] and b.key = x.key)) others
                     where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places)
                ), refused as (
                    -- Behind the first place that gets a key, it is held.
                    select f.place, case when f.place > f.first then 'key_held' else f.name end as name
                      from (select j.place, j.name,
                                   min(j.place) filter (where j.name is null)
                                       over (partition by j.tenant, j.tool, j.value) as first
                              from judged j) f
                     where f.place > f.first or f.name is not null
                )
                select v_places || coalesce(array_agg(r.place), '{}'), v_refused || coalesce(array_agg(r.place), '{}'),
                       v_names || coalesce(array_agg(r.name), '{}')
                  into v_places, v_refused, v_names
                  from refused r;

                -- What stands no more is forgotten, and what was in doubt is held.
                delete from outlast.business_keys b
                 using unnest(b_place, b_wave, b_key, b_tool, b_value)
                       as x (place, wave, key, tool, value)
                 where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places)
                   and b.tenant = h_tenant[x.place >> 20] and b.tool = x.tool and b.value = x.value
                   and (b.until_at <= v_now
                        or (b.state = 'doubt' and b.task = h_task[x.place >> 20] and b.key = x.key));
                insert into outlast.business_keys (tenant, tool, value, mode, task, key, state, window_us)
                select h_tenant[x.place >> 20], x.tool, x.value, x.mode, h_task[x.place >> 20], x.key, 'held', x.window_us
                  from unnest(b_place, b_wave, b_key, b_tool, b_value, b_mode, b_window)
                       as x (place, wave, key, tool, value, mode, window_us)
                 where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places)
                on conflict (tenant, tool, value) where state = 'held' do update
                   set mode = excluded.mode, task = excluded.task, key = excluded.key, window_us = excluded.window_us;
            end if;

            -- A decision is used by the intent that it authorises; what is sent again leaves the reconciliation queue in
            -- this very entry.
            if c_place <> '{}' then
                update outlast.approvals a
                   set state = 'used', used_at = v_now
                  from unnest(i_place, i_wave, i_key) as x (place, wave, key)
                  join unnest(c_place, c_number) as c (place, number) on c.place = x.place
                 where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places)
                   and a.tenant = h_tenant[x.place >> 20] and a.task = h_task[x.place >> 20] and a.key = x.key
                   and a.number = c.number
                   and a.state = 'approved';
            end if;
            if d_place <> '{}' then
                with again as (
                    update outlast.operations o
                       set state = 'planned'
                      from unnest(i_place, i_wave, i_key) as x (place, wave, key)
                     where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places)
                       and x.place = any(d_place)
                       and o.tenant = h_tenant[x.place >> 20] and o.task = h_task[x.place >> 20] and o.key = x.key
                       and o.state = 'unknown'
                    returning o.tenant, o.task, o.key)
                delete from outlast.unsettled u
                 using again a
                 where u.tenant = a.tenant and u.task = a.task and u.key = a.key;
            end if;

            insert into outlast.operations as o (tenant, task, key, position, kind, name, state, request, decision,
                   effect, attempt, turn, epoch, arguments, created_at, intent_at, first_intent_at, deadline_at,
                   visible_at, business_key, business_rule)
            select h_tenant[x.place >> 20], h_task[x.place >> 20], x.key, x.position, x.kind, x.name, 'running', x.request,
                   x.decision, x.effect, x.attempt + 1, x.turn + 1, h_epoch[x.place >> 20], x.arguments, v_now, v_now, v_now,
                   least(v_now + x.timeout, h_deadline[x.place >> 20]),
                   least(v_now + x.timeout, h_deadline[x.place >> 20]) + coalesce(x.visible, 0),
                   x.business::json ->> 'value', x.business
              from unnest(i_place, i_wave, i_key, i_position, i_kind, i_name, i_request, i_decision,
                          i_effect, i_arguments, i_timeout, i_attempt, i_turn, i_business, i_visible)
                   as x (place, wave, key, position, kind, name, request, decision, effect, arguments,
                         timeout, attempt, turn, business, visible)
             where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places)
            on conflict (tenant, task, key) do update
               set kind = excluded.kind, name = excluded.name, state = 'running', request = excluded.request,
                   decision = excluded.decision, effect = excluded.effect, attempt = excluded.attempt,
                   turn = excluded.turn, epoch = excluded.epoch, arguments = excluded.arguments, result = null,
                   error = null, intent_at = excluded.intent_at,
                   first_intent_at = coalesce(o.first_intent_at, excluded.first_intent_at),
                   deadline_at = excluded.deadline_at, visible_at = excluded.visible_at, ended_at = null,
                   settled_by = null,
                   business_key = excluded.business_key, business_rule = excluded.business_rule
             where o.state in ('planned', 'approved') and o.attempt = excluded.attempt - 1
               and o.turn = excluded.turn - 1;

            -- Admitted means written. Who changed an operation without its head (by hand, say) while this looked fails
            -- the batch, which is sent again and looks anew. Counted exactly only where the cheap count is too low.
            get diagnostics v_count = row_count;
            if v_count + cardinality(v_places) < cardinality(i_place)
               and v_count < (select count(*) from unnest(i_place, i_wave) as x (place, wave)
                               where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places)) then
                raise exception 'an operation changed while its intent was committed'
                    using errcode = 'serialization_failure';
            end if;

            -- What an earlier attempt held under another name than this one's is nobody's any more.
            if 0 < any(i_attempt) then
                delete from outlast.business_keys b
                 using unnest(i_place, i_wave, i_key, i_attempt)
                       as x (place, wave, key, attempt)
                 where h_ok[x.place >> 20] and x.wave = v_wave and x.place <> all(v_places) and x.attempt > 0
                   and b.tenant = h_tenant[x.place >> 20] and b.task = h_task[x.place >> 20] and b.key = x.key
                   and b.state <> 'done'
                   and not exists (select from unnest(b_place, b_tool, b_value) as w (place, tool, value)
                                    where w.place = x.place and w.tool = b.tool and w.value = b.value);
            end if;
        end if;
    end loop;

    -- Reserved keys that nobody came to hold go again.
    if b_place <> '{}' then
        delete from outlast.business_keys b
         using unnest(b_place, b_tool, b_value) as x (place, tool, value)
         where h_ok[x.place >> 20] and b.task = ''
           and b.tenant = h_tenant[x.place >> 20] and b.tool = x.tool and b.value = x.value;
    end if;

    -- Outside sessions that nobody else holds.
    if v_rare is not null then
        select v_refused || coalesce(array_agg(a.place), '{}'), v_names || coalesce(array_agg(a.name), '{}')
          into v_refused, v_names
          from outlast.attach_sessions(v_rare, h_tenant, h_task, h_ok, h_epoch, e_place, e_state, v_now) a;
    end if;

    -- Notes: evidence, numbered on.
    if n_place <> '{}' then
        insert into outlast.evidence (tenant, task, key, number, attempt, source, data, at)
        select h_tenant[x.place >> 20], h_task[x.place >> 20], x.key,
               (select coalesce(max(e.number), 0) from outlast.evidence e
                 where e.tenant = h_tenant[x.place >> 20] and e.task = h_task[x.place >> 20] and e.key = x.key)
               + row_number() over (partition by x.place >> 20, x.key order by x.place),
               x.attempt, x.source, x.data, v_now
          from unnest(n_place, n_key, n_attempt, n_source, n_data)
               as x (place, key, attempt, source, data)
         where h_ok[x.place >> 20];
    end if;

    -- Endings.
    if e_place <> '{}' then
        if k_place <> '{}' then
            update outlast.operations o
               set state = 'planned', result = null, error = null, ended_at = null, settled_by = null, lost = false
              from unnest(k_place, k_key) as x (place, key)
             where h_ok[x.place >> 20]
               and o.tenant = h_tenant[x.place >> 20] and o.task = h_task[x.place >> 20] and o.key = x.key
               and o.state = 'failed';
        end if;

        -- An ended task leaves no running effect: nobody knows of those.
        with lost as (
            update outlast.operations o
               set state = 'unknown'
              from unnest(e_place, e_state) as x (place, state)
             where h_ok[x.place >> 20] and x.state in ('succeeded', 'failed', 'cancelled')
               and o.tenant = h_tenant[x.place >> 20] and o.task = h_task[x.place >> 20] and o.state = 'running'
               and o.kind in ('tool', 'model', 'compensation')
            returning o.tenant, o.task, o.key, o.attempt)
        insert into outlast.unsettled (tenant, task, key, since, ask_at, sender_gone)
        select l.tenant, l.task, l.key, v_now, v_now, outlast.said_over(l.tenant, l.task, l.key, l.attempt)
          from lost l
        on conflict do nothing;
        perform outlast.give_up_keys(array_agg(h_tenant[x.place >> 20]), array_agg(h_task[x.place >> 20]))
           from unnest(e_place, e_state) as x (place, state)
          where h_ok[x.place >> 20] and x.state in ('succeeded', 'failed', 'cancelled');

        -- What each ending comes to: a wait that is over already becomes queued at once.
        select coalesce(array_agg(f.head), '{}'), array_agg(f.said), array_agg(f.tenant), array_agg(f.task),
               array_agg(f.state),
               array_agg(case when f.state = 'waiting' then f.reason end), array_agg(f."end"), array_agg(f.open),
               array_agg(case when f.state = 'waiting' then f.due end), array_agg(f.announce), array_agg(f.result),
               array_agg(f.error), array_agg(f.parent), array_agg(f.parent_key), bool_or(f.over),
               bool_or(f.parent is not null)
          into x_head, x_said, x_tenant, x_task, x_state, x_reason, x_end, x_open, x_due, x_announce, x_result, x_error,
               x_parent, x_parent_key, v_over, v_kin
          from (select (x.place >> 20)::integer as head, x.said, h_tenant[x.place >> 20] as tenant,
                       h_task[x.place >> 20] as task, x.reason, x."end", x.result, x.error, c.open, c.due,
                       i.announce, i.parent, i.parent_key,
                       x.state in ('succeeded', 'failed', 'cancelled') as over,
                       case when x.state <> 'waiting' then x.state
                            when h_facts[x.place >> 20] > x.facts then 'queued'
                            when x.reason = 'reconciliation' and c.open = 0 then 'queued'
                            when c.due <= v_now or (x.reason = 'timer' and c.due is null) then 'queued'
                            else 'waiting' end as state
                  from unnest(e_place, e_said, e_end, e_state, e_reason, e_facts, e_result, e_error, e_wake_in,
                              e_at_latest)
                       as x (place, said, "end", state, reason, facts, result, error, wake_in, at_latest)
                 cross join lateral (
                       select (select count(*) from outlast.unsettled u
                                where u.tenant = h_tenant[x.place >> 20]
                                  and u.task = h_task[x.place >> 20]) as open,
                              case when x.state <> 'waiting' then null
                                   when x.wake_in is not null and not x.at_latest then v_now + x.wake_in
                                   else least(v_now + x.wake_in,
                                      (select min(o.due_at) from outlast.operations o
                                        where o.tenant = h_tenant[x.place >> 20]
                                          and o.task = h_task[x.place >> 20] and o.state = 'running'
                                          and o.kind in ('timer', 'signal', 'child'))) end as due) c
                  left join outlast.inputs i
                    on x.state in ('succeeded', 'failed', 'cancelled') and i.tenant = h_tenant[x.place >> 20]
                   and i.task = h_task[x.place >> 20]
                 where h_ok[x.place >> 20]) f;

        if v_over then
            -- A task that is over sends nothing, so what was to be sent again is looked at like any other.
            if 0 < any(x_open) then
                update outlast.unsettled u
                   set resend = false, ask_at = v_now
                  from unnest(x_tenant, x_task, x_state) as x (tenant, task, state)
                 where x.state in ('succeeded', 'failed', 'cancelled')
                   and u.tenant = x.tenant and u.task = x.task and u.resend;
            end if;

            -- No switch holds back what is over; what somebody delivers is forgotten there.
            if exists (select from outlast.held_tasks) then
                perform outlast.release_tasks(
                    array(select x.tenant from unnest(x_tenant, x_state) as x (tenant, state)
                           where x.state in ('succeeded', 'failed', 'cancelled')),
                    array(select x.task from unnest(x_task, x_state) as x (task, state)
                           where x.state in ('succeeded', 'failed', 'cancelled')));
            end if;

            -- Its questions that are open are withdrawn; answers to questions stay.
            with open as (
                update outlast.approvals a
                   set state = 'withdrawn'
                  from unnest(x_head, x_tenant, x_task, x_state) as x (head, tenant, task, state)
                 where x.state in ('succeeded', 'failed', 'cancelled')
                   and a.tenant = x.tenant and a.task = x.task
                   and (a.state = 'pending' or (a.state = 'approved' and a.subject = 'call'))
                returning x.head, a.id, a.key, a.number)
            select array_agg(o.head order by o.head, o.key, o.number),
                   array_agg(o.id order by o.head, o.key, o.number)
              into a_head, a_id
              from open o;

            -- What a checker says of its work.
            if v_rare is not null then
                with judged as materialized (
                    select x.head, x.tenant, x.task, j.verdict, j.who, j.reason, j.evidence
                      from unnest(x_head, x_tenant, x_task, x_state) as x (head, tenant, task, state)
                      join json_to_recordset(v_rare -> 'judged')
                           as j (place bigint, verdict text, who text, reason text, evidence text)
                        on (j.place >> 20)::integer = x.head
                     where x.state = 'succeeded'
                ), kept as (
                    insert into outlast.acceptances (tenant, task, round, number, verdict, by_whom, reason, evidence, at)
                    select j.tenant, j.task, h_round[j.head], 1, j.verdict, j.who, j.reason, j.evidence, v_now
                      from judged j
                ), audited as (
                    insert into outlast.audit (tenant, at, who, what, subject, reason, data)
                    select j.tenant, v_now, j.who, 'accept:' || j.verdict, j.task, j.reason,
                           '{"number":1,"evidence":' || j.evidence || '}'
                      from judged j
                     order by j.head
                )
                select array_agg(j.head), array_agg('task.' || j.verdict),
                       array_agg('{"by":' || to_json(j.who) || ',"reason":' || to_json(j.reason) || ',"number":1}')
                  into j_head, j_kind, j_data
                  from judged j;
            end if;

            -- For its parent, and for those of its children that are not to outlive it.
            if v_kin then
                insert into outlast.posts (tenant, task, kind, name, data)
                select x.tenant, x.parent, 'child', x.parent_key,
                       '{"task":' || to_json(x.task) || ',"state":' || to_json(x.state) || '}'
                  from unnest(x_tenant, x_task, x_state, x_parent, x_parent_key)
                       as x (tenant, task, state, parent, parent_key)
                 where x.parent is not null;
                v_left := exists (select from unnest(x_head, x_parent) as x (head, parent)
                                   where x.parent is not null and x.head <> all(v_heard));
            end if;
            if v_parents && x_head then
                insert into outlast.posts (tenant, task, kind, name, data)
                select i.tenant, i.task, 'cancel', x.task, '{}'
                  from unnest(x_head, x_tenant, x_task, x_state) as x (head, tenant, task, state)
                  join outlast.inputs i on i.tenant = x.tenant and i.parent = x.task and not i.detached
                  join outlast.tasks t on t.tenant = i.tenant and t.id = i.task
                 where x.head = any(v_parents) and x.state in ('succeeded', 'failed', 'cancelled')
                   and t.state in ('queued', 'running', 'waiting')
                 order by x.head, i.task;
                v_left := v_left or found;
            end if;
        end if;
        -- A capital letter: something was left to deliver, which nobody else tells.
        f_head := coalesce(f_head, '{}') || x_head;
        f_code := f_code || array(select case when v_left then upper(left(s.state, 1)) else left(s.state, 1) end
                                    from unnest(x_state) as s (state));

        -- The lease goes, and what it said stays as an attempt that ended.
        with gone as (
            delete from outlast.leases l
             using unnest(x_tenant, x_task, x_end) as x (tenant, task, "end")
             where l.tenant = x.tenant and l.task = x.task
            returning l.tenant, l.task, l.epoch, l.round, l.session, l.version, l.config, l.started_at, x."end")
        insert into outlast.attempts (tenant, task, epoch, round, session, worker, version, config, started_at,
               ended_at, "end")
        select g.tenant, g.task, g.epoch, g.round, g.session, coalesce(s.name, g.session), g.version, g.config,
               g.started_at, v_now, g."end"
          from gone g
          left join outlast.sessions s on s.id = g.session;

        with x as materialized (
            select x.head, x.tenant, x.task, x.state, x.reason, x.due, x.open, x.result, x.error
              from unnest(x_head, x_tenant, x_task, x_state, x_reason, x_due, x_open, x_result, x_error)
                   as x (head, tenant, task, state, reason, due, open, result, error)
        ), entries as (
            insert into outlast.queue (lane, tenant, task)
            select h_lane[x.head], x.tenant, x.task from x where x.state = 'queued' order by x.head
        ), alarms as (
            insert into outlast.timers (tenant, task, kind, due_at)
            select x.tenant, x.task, 'wake', x.due from x where x.due is not null
            on conflict (tenant, task, kind) do update set due_at = excluded.due_at
        ), silenced as (
            delete from outlast.timers t
             using x
             where x.state in ('succeeded', 'failed', 'cancelled') and t.tenant = x.tenant and t.task = x.task
        )
        insert into outlast.results (tenant, task, round, state, result, error, effects_open, ended_at)
        select x.tenant, x.task, h_round[x.head], x.state, x.result, x.error, x.open, v_now
          from x
         where x.state in ('succeeded', 'failed', 'cancelled');
    end if;

    -- What is refused says nothing, nor does a question that is a repeat; what questions say comes behind the events of
    -- their own entries. So what is left is counted anew.
    if v_refused <> '{}' or q_place <> '{}' then
        select coalesce(array_agg(v.place order by v.place, v.later, v.ord), '{}'),
               array_agg(v.nth order by v.place, v.later, v.ord),
               array_agg(v.kind order by v.place, v.later, v.ord),
               array_agg(v.data order by v.place, v.later, v.ord)
          into v_place, v_nth, v_kind, v_data
          from (select v.*, row_number() over (partition by v.place >> 20 order by v.place, v.later, v.ord) as nth
                  from (select v.place, v.kind, v.data, v.ord, false as later
                          from unnest(v_place, v_kind, v_data) with ordinality as v (place, kind, data, ord)
                         where not exists (select from unnest(q_place, q_what) as q (place, what)
                                            where q.place = v.place and q.what = 'silent')
                         union all
                        select q.place, q.kind, q.data, q.ord, true
                          from unnest(q_place, q_what, q_kind, q_data) with ordinality
                               as q (place, what, kind, data, ord)
                         where q.what = 'says') v
                 where v.place <> all(v_refused)) v;
        h_said := array(
            select count(v.place)::integer
              from generate_series(1, v_heads) as h (head)
              left join unnest(v_place) as v (place) on v.place >> 20 = h.head
             group by h.head
             order by h.head);
        x_said := array(select h_said[x.head] from unnest(x_head) with ordinality as x (head, ord) order by x.ord);
        h_said := array(select case when h.head = any(x_head) then 0 else h.said end
                          from unnest(h_said) with ordinality as h (said, head)
                         order by h.head);
    end if;

    -- Events, numbered on from the locked heads; then the heads, once each.
    if v_place <> '{}' then
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        select h_tenant[v.place >> 20], h_task[v.place >> 20], h_last[v.place >> 20] + v.nth, v.kind,
               h_epoch[v.place >> 20], v.data, v_now
          from unnest(v_place, v_nth, v_kind, v_data) as v (place, nth, kind, data)
         where h_ok[v.place >> 20];
    end if;
    if 0 < any(h_said) then
        update outlast.tasks t
           set last_event = t.last_event + h.said
          from unnest(h_said) with ordinality as h (said, head)
         where t.ctid = h_at[h.head] and h_ok[h.head] and h.said > 0;
        get diagnostics v_count = row_count;
        if v_count < cardinality(array_remove(h_said, 0))
           and v_count < (select count(*) from unnest(h_said, h_ok) as h (said, ok) where h.ok and h.said > 0) then
            raise exception 'a head moved under its lock' using errcode = 'serialization_failure';
        end if;
    end if;
    if x_head <> '{}' then
        -- What a checker says of the work, and that questions are withdrawn, stands between the end of the attempt and
        -- what becomes of the task.
        x_more := array_fill(0, array[cardinality(x_head)]);
        if j_head is not null or a_head is not null then
            x_more := array(
                select count(m.head)::integer
                  from unnest(x_head) with ordinality as x (head, ord)
                  left join unnest(j_head || a_head) as m (head) on m.head = x.head
                 group by x.ord
                 order by x.ord);
            insert into outlast.events (tenant, task, number, kind, epoch, data, at)
            select x.tenant, x.task,
                   h_last[x.head] + x.said + 1 + row_number() over (partition by x.head order by m.ord),
                   m.kind, h_epoch[x.head], m.data, v_now
              from (select j.head, j.kind, j.data, 0 as ord
                      from unnest(j_head, j_kind, j_data) as j (head, kind, data)
                     union all
                    select a.head, 'approval.withdrawn', '{"approval":' || to_json(a.id) || '}', a.ord
                      from unnest(a_head, a_id) with ordinality as a (head, id, ord)) m
              join unnest(x_head, x_said, x_tenant, x_task) as x (head, said, tenant, task) on x.head = m.head;
        end if;
        insert into outlast.events (tenant, task, number, kind, epoch, data, at)
        select x.tenant, x.task, h_last[x.head] + e.nth, e.kind, h_epoch[x.head], e.data, v_now
          from unnest(x_head, x_said, x_more, x_tenant, x_task, x_end, x_state, x_reason, x_open)
               as x (head, said, more, tenant, task, "end", state, reason, open)
         cross join lateral (values
               (x.said + 1, 'attempt.' || x."end", '{}'),
               (x.said + x.more + 2, 'task.' || x.state,
                case x.state when 'queued' then '{}'
                             when 'waiting' then '{"reason":"' || x.reason || '"}'
                             else '{' || coalesce(m_said[array_position(m_head, x.head)], '')
                                  || '"effects_open":' || x.open || '}' end)) as e (nth, kind, data);
        if true = any(x_announce) then
            insert into outlast.outbox (tenant, task, number, topic, data, created_at)
            select e.tenant, e.task, e.number, e.kind, e.data, v_now
              from unnest(x_head, x_said, x_more, x_tenant, x_task, x_announce)
                   as x (head, said, more, tenant, task, announce)
              join outlast.events e
                on e.tenant = x.tenant and e.task = x.task and e.number = h_last[x.head] + x.said + x.more + 2
             where x.announce;
        end if;
        update outlast.tasks t
           set last_event = t.last_event + x.said + x.more + 2, state = x.state, reason = x.reason,
               cancelling = t.cancelling and t.undoing and x.state in ('queued', 'waiting'),
               undoing = t.undoing and x.state in ('queued', 'waiting')
          from unnest(x_head, x_said, x_more, x_state, x_reason) as x (head, said, more, state, reason)
         where t.ctid = h_at[x.head];
        get diagnostics v_count = row_count;
        if v_count <> cardinality(x_head) then
            raise exception 'a head moved under its lock' using errcode = 'serialization_failure';
        end if;
    end if;

    -- Waits that providers asked for; the longer one stays.
    if s_until <> '{}' then
        perform outlast.keep_waits(s_tenant, s_provider, s_until);
    end if;

    -- Unknowns that their worker has settled, or sends again.
    if array_remove(o_settled_by, null) <> '{}' or d_place <> '{}' then
        perform outlast.count_settled(array_agg(h_tenant[x.place >> 20]), array_agg(h_task[x.place >> 20]),
                                      array_agg(x.key), array_agg(x.state))
           from (select o.place, o.key, o.state
                   from unnest(o_place, o_key, o_state, o_settled_by)
                        as o (place, key, state, settled_by)
                  where o.settled_by is not null
                  union all
                 select i.place, i.key, 'planned'
                   from unnest(i_place, i_key) as i (place, key)
                  where i.place = any(d_place)) x
          where h_ok[x.place >> 20] and x.place <> all(v_refused);
    end if;

    -- The verdicts, in short: a letter for each head, then head:entry:name of what was refused.
    if f_head is null or f_head = '{}' then
        v_verdicts := repeat('r', v_heads);
    else
        select string_agg(coalesce(f.code, 'r'), '' order by h.head) into v_verdicts
          from generate_series(1, v_heads) as h (head)
          left join unnest(f_head, f_code) as f (head, code) on f.head = h.head;
    end if;
    if v_refused <> '{}' then
        select v_verdicts || '|' || string_agg((f.place >> 20) || ':' || (f.place & 1048575) || ':' || f.name, ','
                                               order by f.place)
          into v_verdicts
          from unnest(v_refused, v_names) as f (place, name);
    end if;
    delete from outlast.writers w where w.id = p_writer and w.number = v_last_number;
    insert into outlast.writers (id, number, verdicts, updated_at) values (p_writer, p_number, v_verdicts, v_now);
    return v_verdicts;
end
$$;
