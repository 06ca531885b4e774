-- load_input, claim, submit_and_claim: queued tasks become leases of one session.
--
-- Lock order: the claimers' advisory lock, which lives inside this one call; the session's row; heads with skip
-- locked, so that a head that somebody holds is left for later and nobody waits; then entries, leases, events and marks.
-- What is fenced: state and lane are read from the locked head, so that a stale entry claims nothing. What is brought
-- along is read once every head is taken, in statements of their own: whoever puts something before a task or into its
-- journal locks its head, so that it is what the worker would load.
--
-- Cost: each lane is looked into from its mark on. The index entries of claimed tasks stay until a vacuum may remove
-- them, which is not before the oldest snapshot anywhere in the database ends; below the mark nobody walks over them.

-- Read a claimed task's input, count its ended attempts, and say whether it is a fork, whether it has a journal and
-- whether something lies before it; no locks. bytes: of all the text, none of which is read for that. The server puts the text of this in the place of its call. What exists is asked
-- for by a look for one row: an exists may be answered by reading a whole table once, where few rows were known of it.
create function outlast.load_input(p_tenant text, p_task text, p_round integer)
returns table (input text, user_name text, trace text, submitted_at bigint, failures bigint, attempts bigint,
               budget text, depth integer, forked boolean, begun boolean, heard boolean, bytes integer)
language sql stable as $$
select i.input, i.user_name, i.trace, i.submitted_at, a.failures, a.attempts, i.budget, i.depth::integer,
       i.forked_from is not null,
       coalesce((select true from outlast.operations o where o.tenant = p_tenant and o.task = p_task limit 1), false),
       coalesce((select true
                   from outlast.inbox b
                  where b.tenant = p_tenant and b.task = p_task and b.taken_by is null
                  limit 1), false),
       octet_length(i.input) + coalesce(octet_length(i.user_name), 0) + coalesce(octet_length(i.trace), 0)
           + coalesce(octet_length(i.budget), 0)
  from outlast.inputs i
 cross join lateral (
       select count(*) filter (where a.round = p_round and a."end" = 'failed') as failures, count(*) as attempts
         from outlast.attempts a
        where a.tenant = p_tenant and a.task = p_task) a
 where i.tenant = p_tenant and i.task = p_task
$$;

-- Claim up to a limit; answers a row for each lease, or one row without a task: nothing, or refused. A claim that took
-- no more than p_few adds what those tasks are loaded with that begin and whose texts have no more than p_short bytes:
-- rows without an epoch. With both bounds the answer stays small enough for a client that does not read it.
create function outlast.claim(
    p_session text, p_pools text[], p_agents text[], p_versions text[], p_defaults boolean[], p_limit integer,
    p_config text, p_fence bigint, p_now bigint, p_after text, p_marks bigint[], p_counts bigint[],
    p_few integer, p_short integer
) returns table (tenant text, task text, epoch bigint, round integer, agent text, version text, facts bigint,
                 deadline_at bigint, cancelling boolean, lane bigint, now bigint, refused boolean, input text,
                 user_name text, trace text, submitted_at bigint, failures bigint, attempts bigint, budget text,
                 depth integer)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_worker text;
    v_xmin xid8;
    v_now bigint;
    v_lanes bigint[] := '{}';
    v_agents text[];
    v_versions text[];
    v_mark_xids xid8[];
    v_mark_seqs bigint[];
    v_weights integer[];
    v_priorities integer[];
    v_room integer := p_limit;
    v_look integer := p_limit;
    v_each integer;
    v_last bigint;
    v_seen integer;
    v_stale integer;
    q_lane bigint[];
    q_xid xid8[];
    q_seq bigint[];
    q_tenant text[];
    q_task text[];
    q_bind bigint[];
    q_version text[];
    q_agent text[];
    t_place integer[];
    t_at tid[];
    t_epoch bigint[];
    t_round integer[];
    t_facts bigint[];
    t_event bigint[];
    t_deadline bigint[];
    t_undoing boolean[];
    b_tenant text[] := '{}';
    b_task text[] := '{}';
    b_round integer[] := '{}';
begin
    -- One claimer at a time, from here to the end of this call's transaction. Blocking is harmless: whoever holds it is
    -- inside this same function, on the server.
    perform pg_advisory_xact_lock(hashtextextended('outlast.claim', 0));
    select s.name into v_worker
      from outlast.sessions s
     where s.id = p_session and s.lost_at is null and s.fence <= p_fence;
    if not found then
        now := coalesce(p_now, outlast.clock_us());
        refused := true;
        return next;
        return;
    end if;

    -- The lanes that this request serves. A task that is not bound yet goes to the default version's lane. A mark above
    -- this database's own transactions comes from another database (a restored dump) and is not believed.
    v_xmin := pg_snapshot_xmin(pg_current_snapshot());
    select coalesce(array_agg(l.id), '{}'), array_agg(l.agent), array_agg(l.served_version),
           array_agg(case when l.mark_xid <= v_xmin then l.mark_xid else '0' end),
           array_agg(case when l.mark_xid <= v_xmin then l.mark_seq else 0 end),
           array_agg(l.weight), array_agg(l.priority)
      into v_lanes, v_agents, v_versions, v_mark_xids, v_mark_seqs, v_weights, v_priorities
      from (select distinct on (l.id) l.id, l.agent, w.version as served_version, l.mark_xid, l.mark_seq, l.weight,
                   l.priority
              from unnest(p_agents, p_versions, p_defaults) as w (agent, version, is_default)
             cross join unnest(p_pools) as p (pool)
              join outlast.lanes l
                on l.pool = p.pool and l.agent = w.agent
               and l.version in (w.version, case when w.is_default then '' else w.version end)
             order by l.id, w.version desc) l;
    v_now := coalesce(p_now, outlast.clock_us());

    -- Marks are moved for the lanes that the caller counts as worn, now and then. Whatever this snapshot cannot see yet
    -- was written by a transaction at or above its xmin, so the mark never passes that.
    if cardinality(p_marks) > 0 then
        update outlast.lanes l
           set mark_xid = m.xid, mark_seq = m.seq, served = l.served + m.served
          from (select o.id, w.served,
                       case when f.xid < v_xmin then f.xid else v_xmin end as xid,
                       case when f.xid < v_xmin then f.seq else 0 end as seq
                  from unnest(p_marks, p_counts) as w (lane, served)
                  join outlast.lanes o on o.id = w.lane
                  left join lateral (
                       select q.xid, q.seq
                         from outlast.queue q
                        where q.lane = o.id
                           and (q.xid, q.seq) >= (case when o.mark_xid <= v_xmin then o.mark_xid else '0' end,
                                                  case when o.mark_xid <= v_xmin then o.mark_seq else 0 end)
                        order by q.xid, q.seq
                        limit 1) f on true) m
         where l.id = m.id;
    end if;

    for v_turn in 1..20 loop
        -- Oldest entries of each lane; tenants take turns, beginning after the one that was served last. Inside a
        -- tenant a higher priority goes first, then age. The more lanes there are, the fewer entries of each are looked
        -- at first; turns are complete as far down as every lane was read.
        v_each := least(v_look, v_look / greatest(cardinality(v_lanes), 1) + 1);
        loop
            select array_agg(c.lane), array_agg(c.xid), array_agg(c.seq), array_agg(c.tenant), array_agg(c.task),
                   array_agg(c.version), array_agg(c.agent), max(c.turn)
              into q_lane, q_xid, q_seq, q_tenant, q_task, q_version, q_agent, v_last
              from (select o.*
                      from (select e.*, (row_number() over (partition by e.tenant order by e.priority desc, e.xid, e.seq) - 1)
                                   / e.weight as turn
                              from (select l.lane, l.version, l.agent, l.weight, l.priority, q.xid, q.seq, q.tenant, q.task
                                      from unnest(v_lanes, v_versions, v_agents, v_weights, v_priorities, v_mark_xids,
                                                  v_mark_seqs)
                                           as l (lane, version, agent, weight, priority, mark_xid, mark_seq)
                                     cross join lateral (
                                           select q.xid, q.seq, q.tenant, q.task
                                             from outlast.queue q
                                            where q.lane = l.lane and (q.xid, q.seq) >= (l.mark_xid, l.mark_seq)
                                            order by q.xid, q.seq
                                            limit v_each * l.weight) q) e) o
                     order by o.turn, o.tenant <= p_after, o.tenant, o.priority desc, o.xid, o.seq
                     limit v_look) c;
            v_seen := coalesce(cardinality(q_lane), 0);
            exit when v_each >= v_look or v_seen < v_each or (v_seen >= v_look and v_last < v_each);
            v_each := least(v_look, v_each * 4);
        end loop;
        exit when v_seen = 0;

        -- The session, now that there is something to take: the sweeper ends sessions under a lock that excludes this
        -- one, so a lease can never be made for a session that it has passed by.
        if v_turn = 1 then
            perform from outlast.sessions s
              where s.id = p_session and s.lost_at is null and s.fence <= p_fence
                for key share;
            if not found then
                now := v_now;
                refused := true;
                return next;
                return;
            end if;
        end if;

        -- Lock heads that are queued, where their entries say. Where each lies is kept: nobody moves it until we write it.
        with locked as (
            select c.place::integer, t.ctid as at, t.epoch, t.round, t.facts, t.last_event, t.deadline_at, t.undoing
              from unnest(q_tenant, q_task, q_lane) with ordinality as c (tenant, task, lane, place)
              join outlast.tasks t on t.tenant = c.tenant and t.id = c.task
             where t.state = 'queued' and t.lane = c.lane
             order by c.place
             limit v_room
               for no key update of t skip locked)
        select coalesce(array_agg(l.place), '{}'), array_agg(l.at), array_agg(l.epoch), array_agg(l.round),
               array_agg(l.facts), array_agg(l.last_event), array_agg(l.deadline_at), array_agg(l.undoing)
          into t_place, t_at, t_epoch, t_round, t_facts, t_event, t_deadline, t_undoing
          from locked l;

        v_now := coalesce(p_now, outlast.clock_us());
        if t_place <> '{}' then
            -- Where the tasks stand once they are bound to a version; that lane may not exist yet. Many tasks stand in few
            -- lanes, each of which is looked up by itself, however few lanes there were when this was planned.
            for v_try in 1..2 loop
                with bound as materialized (
                    select d.lane, d.version, b.id as bind
                      from (select distinct x.lane, x.version from unnest(q_lane, q_version) as x (lane, version)) d
                     cross join lateral (select l.pool, l.agent, l.tenant, l.priority
                                           from outlast.lanes l
                                          where l.id = d.lane
                                          limit 1) l
                      left join lateral (select b.id
                                           from outlast.lanes b
                                          where b.pool = l.pool and b.agent = l.agent and b.version = d.version
                                            and b.tenant = l.tenant and b.priority = l.priority
                                          limit 1) b on true)
                select array_agg(w.bind order by c.place) into q_bind
                  from unnest(q_lane, q_version) with ordinality as c (lane, version, place)
                  join bound w on w.lane = c.lane and w.version = c.version;
                exit when array_position(q_bind, null) is null;
                insert into outlast.lanes (pool, agent, version, tenant, priority, weight)
                select distinct l.pool, l.agent, c.version, l.tenant, l.priority, l.weight
                  from unnest(q_lane, q_version, q_bind) as c (lane, version, bind)
                  join outlast.lanes l on l.id = c.lane
                 where c.bind is null
                on conflict do nothing;
            end loop;

            return query
            with got as materialized (
                -- Two entries may name one task; one lease comes of it.
                select distinct on (c.tenant, c.task) c.lane, c.tenant, c.task, c.bind, c.version, c.agent, g.place,
                       g.at, g.epoch + 1 as epoch, g.round, g.facts, g.event + 1 as event, g.deadline_at, g.undoing
                  from unnest(t_place, t_at, t_epoch, t_round, t_facts, t_event, t_deadline, t_undoing)
                       as g (place, at, epoch, round, facts, event, deadline_at, undoing)
                  join unnest(q_lane, q_tenant, q_task, q_bind, q_version, q_agent) with ordinality
                       as c (lane, tenant, task, bind, version, agent, place) on c.place = g.place
                 order by c.tenant, c.task, g.place
            ), heads as (
                update outlast.tasks t
                   set state = 'running', epoch = g.epoch, last_event = g.event, lane = g.bind
                  from got g
                 where t.ctid = g.at
            ), leased as (
                insert into outlast.leases (tenant, task, epoch, round, session, version, config, started_at)
                select g.tenant, g.task, g.epoch, g.round, p_session, g.version, p_config, v_now from got g
            ), said as (
                insert into outlast.events (tenant, task, number, kind, epoch, data, at)
                select g.tenant, g.task, g.event, 'attempt.started', g.epoch,
                       '{"worker":' || to_json(v_worker) || ',"version":' || to_json(g.version) || '}', v_now
                  from got g
            )
            select g.tenant, g.task, g.epoch, g.round, g.agent, g.version, g.facts, g.deadline_at, g.undoing, g.lane,
                   v_now, false, null::text, null::text, null::text, null::bigint, null::bigint, null::bigint, null::text,
                   null::integer
              from got g
             order by g.place;
        end if;

        -- Entries whose task was taken just now, or is not queued there any more, have done their service. Asked by a look
        -- for one row: an exists may be answered by reading a whole table once.
        with gone as (
            delete from outlast.queue q
             using unnest(q_lane, q_xid, q_seq, q_tenant, q_task) with ordinality
                   as c (lane, xid, seq, tenant, task, place)
             where q.lane = c.lane and q.xid = c.xid and q.seq = c.seq
               and (c.place = any(t_place)
                    or (select true from outlast.tasks t
                         where t.tenant = c.tenant and t.id = c.task and t.state = 'queued' and t.lane = c.lane
                         limit 1) is null)
            returning 1)
        select count(*) into v_stale from gone;

        -- Look again only where stale entries or locked heads stood in the way of others, and further each time: a claim
        -- that takes little passes as many of them as one that takes much.
        v_room := v_room - cardinality(t_place);
        if p_limit - v_room <= p_few then
            for v_item in 1..cardinality(t_place) loop
                if t_epoch[v_item] = 0 then
                    b_tenant := b_tenant || q_tenant[t_place[v_item]];
                    b_task := b_task || q_task[t_place[v_item]];
                    b_round := b_round || t_round[v_item];
                end if;
            end loop;
        end if;
        exit when v_room <= 0 or v_seen < v_look;
        v_look := greatest(v_room + v_seen - v_stale, least(2 * v_look, 2000));
    end loop;

    -- Tasks that were never claimed before are brought along; but not those that somebody has given something to begin
    -- with.
    if p_limit - v_room <= p_few and b_task <> '{}' then
        return query
        select c.tenant, c.task, null::bigint, null::integer, null::text, null::text, null::bigint, null::bigint,
               null::boolean, null::bigint, v_now, false, i.input, i.user_name, i.trace, i.submitted_at, i.failures,
               i.attempts, i.budget, i.depth
          from unnest(b_tenant, b_task, b_round) as c (tenant, task, round)
         cross join lateral outlast.load_input(c.tenant, c.task, c.round) i
         where i.bytes <= p_short and not (i.forked or i.begun or i.heard);
    end if;

    -- Nothing: the time all the same.
    if v_room = p_limit then
        now := v_now;
        refused := false;
        return next;
    end if;
end
$$;

-- Accept a batch and, in the same transaction, claim. Answers submit's rows, which have an item, and behind them
-- claim's, which have none; or submit's row lane alone: nothing was done. Where another claimer is at work nothing is
-- claimed, and refused is null: to wait here for its lock would be to wait with a batch in hand.
--
-- Lock order: keys and rows of the batch as in submit, but without parents' heads, which claimers may wait for; then as
-- in claim, whose lock is only tried. Nobody who has that one waits for keys. What waits here waits shortly, as a worker
-- waits with it.
create function outlast.submit_and_claim(
    p_tenant text[], p_task text[], p_key text[], p_digest text[], p_agent text[], p_version text[], p_pool text[],
    p_priority integer[], p_input text[], p_user text[], p_deadline_us bigint[], p_run_at bigint[], p_trace text[],
    p_announce boolean[], p_origin text[], p_budget text[], p_lane bigint[],
    p_session text, p_pools text[], p_agents text[], p_versions text[], p_defaults boolean[], p_limit integer,
    p_config text, p_fence bigint, p_now bigint, p_after text, p_marks bigint[], p_counts bigint[],
    p_few integer, p_short integer
) returns table (tenant text, task text, epoch bigint, round integer, agent text, version text, facts bigint,
                 deadline_at bigint, cancelling boolean, lane bigint, now bigint, refused boolean, input text,
                 user_name text, trace text, submitted_at bigint, failures bigint, attempts bigint, budget text,
                 depth integer, item bigint, kind text)
language plpgsql volatile set lock_timeout = '100ms' as $$
#variable_conflict use_column
begin
    for item, kind, task in
        select s.item, s.kind, s.task
          from outlast.submit(
               p_tenant, p_task, p_key, p_digest, p_agent, p_version, p_pool, p_priority, p_input, p_user,
               p_deadline_us, p_run_at, p_trace, p_announce, p_origin, '{}', '{}', '{}', '{}', '{}', '{}', p_budget,
               p_lane) s
    loop
        return next;
        if kind = 'lane' then
            return;
        end if;
    end loop;
    if pg_try_advisory_xact_lock(hashtextextended('outlast.claim', 0)) then
        return query
        select c.*, null::bigint, null::text
          from outlast.claim(
               p_session, p_pools, p_agents, p_versions, p_defaults, p_limit, p_config, p_fence, p_now, p_after,
               p_marks, p_counts, p_few, p_short) c;
    else
        item := null;
        kind := null;
        task := null;
        now := coalesce(p_now, outlast.clock_us());
        refused := null;
        return next;
    end if;
end
$$;
