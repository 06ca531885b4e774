-- settle, flush, read_settled_counts, count_unknown: how unknowns were settled, by tool.
--
-- Lock order: the file's one writer lock; the views take none.

-- Count a settlement.
-- name: count_settled
insert into settled_counts (tenant, tool, happened, did_not_happen, sent_again)
select tenant, name, :happened, :did_not_happen, :sent_again
from operations
where tenant = :tenant and task = :task and key = :key and kind in ('tool', 'compensation')
on conflict (tenant, tool) do update
set happened = happened + excluded.happened, did_not_happen = did_not_happen + excluded.did_not_happen,
    sent_again = sent_again + excluded.sent_again;

-- Read how a tenant's unknowns were settled, tool by tool, and count those that are open, up to a bound.
-- name: read_settled_counts
select tool, sum(unknown), sum(happened), sum(did_not_happen), sum(sent_again)
from (
    select tool, 0 as unknown, happened, did_not_happen, sent_again
    from settled_counts
    where tenant = :tenant
    union all
    select name, 1, 0, 0, 0
    from (select tenant, task, key from unsettled where tenant = :tenant limit :limit) as open
    join operations using (tenant, task, key)
    where kind in ('tool', 'compensation')
)
group by tool
order by tool;

-- Count unknown calls by tool, up to a bound.
-- name: count_unknown
select name, count(*)
from (select tenant, task, key from unsettled limit :limit) as open
join operations using (tenant, task, key)
where kind in ('tool', 'compensation')
group by name
order by name;
