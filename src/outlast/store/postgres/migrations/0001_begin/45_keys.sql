-- Business keys and counts: what an outcome and an ending do to them.
--
-- Lock order: the caller holds the head of each task. A key that is held is written by nobody else (see flush), so that
-- it is not waited for. Counts are everybody's: they are written last, by tenant and tool.

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

-- Tasks have ended: keys of operations that were never sent, or are known not to have been, are given up.
create function outlast.give_up_keys(p_tenant text[], p_task text[]) returns void language sql volatile as $$
    delete from outlast.business_keys b
     using unnest(p_tenant, p_task) as x (tenant, task)
     where b.tenant = x.tenant and b.task = x.task and b.state = 'held'
       and not exists (select from outlast.operations o
                        where o.tenant = b.tenant and o.task = b.task and o.key = b.key
                          and o.state in ('running', 'unknown'))
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
