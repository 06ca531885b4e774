-- Business keys, waits and counts: what an outcome, an ending, a question and late evidence do to them.
--
-- Lock order: the caller holds the head of each task. The row of an operation is written under that alone. A key that is
-- held is written by nobody else (see flush), so that it is not waited for. Waits and counts are everybody's: they are
-- written last, waits by tenant and provider, then counts by tenant and tool.

-- Operations have an outcome: a key that stands for a while after a success is done, any other is given up.
create function outlast.settle_keys(p_tenant text[], p_task text[], p_key text[], p_state text[], p_now bigint)
returns void language sql volatile as $$
    with ended as materialized (
        select x.tenant, x.task, x.key, x.state
          from unnest(p_tenant, p_task, p_key, p_state) as x (tenant, task, key, state)
         where x.state in ('succeeded', 'failed')
    ), stands as (
        update outlast.business_keys b
           set state = 'done', until_at = coalesce(p_now + b.window_us, 9223372036854775807)
          from ended x
         where x.state = 'succeeded' and b.mode = 'once'
           and b.tenant = x.tenant and b.task = x.task and b.key = x.key
    )
    delete from outlast.business_keys b
     using ended x
     where (x.state = 'failed' or b.mode = 'lock')
       and b.tenant = x.tenant and b.task = x.task and b.key = x.key
$$;

-- Reserve the keys of operations that late evidence may bring in doubt, in the order of names: whoever is about to take
-- one is waited for, and whoever comes later sees the doubt. Answers what was reserved, as three arrays in one order.
create function outlast.reserve_keys(
    p_tenant text[], p_task text[], p_key text[], out r_tenant text[], out r_tool text[], out r_value text[]
) language sql volatile as $$
    with reserved as (
        insert into outlast.business_keys (tenant, tool, value, mode, task, key, state)
        select distinct x.tenant collate "C", o.rule ->> 'tool' collate "C", o.rule ->> 'value' collate "C", 'lock', '',
               '', 'held'
          from unnest(p_tenant, p_task, p_key) as x (tenant, task, key)
         cross join lateral (
               select o.business_rule::json as rule
                 from outlast.operations o
                where o.tenant = x.tenant and o.task = x.task and o.key = x.key and o.business_rule is not null
                limit 1) o
         where not exists (select from outlast.business_keys b
                            where b.tenant = x.tenant and b.tool = o.rule ->> 'tool' and b.value = o.rule ->> 'value'
                              and b.state = 'held')
         order by 1, 2, 3
        on conflict do nothing
        returning tenant, tool, value)
    select array_agg(r.tenant), array_agg(r.tool), array_agg(r.value) from reserved r
$$;

-- Reserved keys that nobody has come to hold go again.
create function outlast.release_keys(p_tenant text[], p_tool text[], p_value text[])
returns void language sql volatile as $$
    delete from outlast.business_keys b
     using unnest(p_tenant, p_tool, p_value) as x (tenant, tool, value)
     where b.tenant = x.tenant and b.tool = x.tool and b.value = x.value and b.task = ''
$$;

-- An operation whose outcome is in doubt has the key of its last intent, beside whoever has it now; answers its value and
-- who else has it, no row where nobody does.
create function outlast.doubt_key(p_tenant text, p_task text, p_key text)
returns table (value text, task text, key text, state text) language plpgsql volatile as $$
#variable_conflict use_column
begin
    insert into outlast.business_keys (tenant, tool, value, mode, window_us, task, key, state)
    select o.tenant, o.business_rule::json ->> 'tool', o.business_rule::json ->> 'value',
           o.business_rule::json ->> 'mode', (o.business_rule::json ->> 'window_us')::bigint, o.task, o.key, 'doubt'
      from outlast.operations o
     where o.tenant = p_tenant and o.task = p_task and o.key = p_key and o.business_rule is not null
    on conflict (tenant, tool, value, task, key) do update set state = 'doubt', until_at = null;
    return query
    select b.value, b.task, b.key, case b.state when 'done' then 'done' else 'held' end
      from outlast.business_keys own
      join outlast.business_keys b on b.tenant = own.tenant and b.tool = own.tool and b.value = own.value
     where own.tenant = p_tenant and own.task = p_task and own.key = p_key and own.state = 'doubt'
       and b.task <> '' and not (b.task = own.task and b.key = own.key)
     order by b.state = 'done', b.state = 'doubt', b.until_at desc, b.task, b.key
     limit 1;
end
$$;

-- Tasks have ended: keys of operations that were never sent, or are known not to have been, are given up.
create function outlast.give_up_keys(p_tenant text[], p_task text[]) returns void language sql volatile as $$
    delete from outlast.business_keys b
     using unnest(p_tenant, p_task) as x (tenant, task)
     where b.tenant = x.tenant and b.task = x.task and b.state = 'held'
       and not exists (select from outlast.operations o
                        where o.tenant = b.tenant and o.task = b.task and o.key = b.key
                          and o.state in ('running', 'unknown'))
$$;

-- Keep how long providers asked everybody to wait; the longest of those and of what stands. One without an end is none.
create function outlast.keep_waits(p_tenant text[], p_provider text[], p_until bigint[])
returns void language sql volatile as $$
    insert into outlast.provider_waits as w (tenant, provider, until_at)
    select s.tenant collate "C", s.provider collate "C", max(s.until_at)
      from unnest(p_tenant, p_provider, p_until) as s (tenant, provider, until_at)
     where s.until_at is not null
     group by 1, 2
     order by 1, 2
    on conflict (tenant, provider) do update
       set until_at = excluded.until_at
     where excluded.until_at > w.until_at
$$;

-- Count operations that were unknown and have been settled, by what they are now. Each is looked up by its name: nothing
-- here may be looked for by a scan of the ledger.
create function outlast.count_settled(p_tenant text[], p_task text[], p_key text[], p_state text[])
returns void language sql volatile as $$
    insert into outlast.settled_counts as c (tenant, tool, happened, did_not_happen, sent_again)
    select x.tenant collate "C", o.name collate "C", count(*) filter (where x.state = 'succeeded'),
           count(*) filter (where x.state = 'failed'), count(*) filter (where x.state = 'planned')
      from unnest(p_tenant, p_task, p_key, p_state) as x (tenant, task, key, state)
     cross join lateral (
           select o.name
             from outlast.operations o
            where o.tenant = x.tenant and o.task = x.task and o.key = x.key and o.kind in ('tool', 'compensation')
            limit 1) o
     where x.state in ('succeeded', 'failed', 'planned')
     group by 1, 2
     order by 1, 2
    on conflict (tenant, tool) do update
       set happened = c.happened + excluded.happened, did_not_happen = c.did_not_happen + excluded.did_not_happen,
           sent_again = c.sent_again + excluded.sent_again
$$;
