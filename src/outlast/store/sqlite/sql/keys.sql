-- Business keys: asked for by intents, given up or done by outcomes, settlements and endings.
--
-- Lock order: the file's one writer lock. What a gate reads of a key cannot change before it takes it.

-- Say whether there are any, so that those who have none pay for one look a transaction.
-- name: any_keys
select 1
from business_keys
limit 1;

-- Read who holds a key: whoever has it, else one that is in doubt, else the success that stands longest.
-- name: read_key
select task, key, case when state = 'done' then 'done' else 'held' end, until_at
from business_keys
where tenant = :tenant and tool = :tool and value = :value and (until_at is null or until_at > :now)
order by state = 'done', state = 'doubt', until_at desc, task, key
limit 1;

-- Read who else has a key, those first who have not ended.
-- name: read_others
select task, key, case when state = 'done' then 'done' else 'held' end, until_at
from business_keys
where tenant = :tenant and tool = :tool and value = :value and not (task = :task and key = :key)
order by state = 'done', state = 'doubt', until_at desc, task, key;

-- Forget the successes of a key that stand no more.
-- name: drop_over_keys
delete from business_keys
where tenant = :tenant and tool = :tool and value = :value and until_at <= :now;

-- Take a key that nobody else holds.
-- name: take_key
insert into business_keys (tenant, tool, value, mode, window_us, task, key, state, until_at)
values (:tenant, :tool, :value, :mode, :window_us, :task, :key, 'held', null)
on conflict (tenant, tool, value, task, key) do update
set mode = excluded.mode, window_us = excluded.window_us, state = 'held', until_at = null;

-- Give up what an operation holds.
-- name: give_up_key
delete from business_keys
where tenant = :tenant and task = :task and key = :key and state <> 'done';

-- Give up what an operation holds beside the key of its new intent.
-- name: give_up_other_keys
delete from business_keys
where tenant = :tenant and task = :task and key = :key and state <> 'done' and not (tool = :tool and value = :value);

-- Let the key of an operation that succeeded stand for its window, without one for good.
-- name: finish_key
update business_keys
set state = 'done', until_at = coalesce(:now + window_us, 9223372036854775807)
where tenant = :tenant and task = :task and key = :key and state <> 'done' and mode = 'once';

-- Keep the key of an operation whose outcome is in doubt, beside whoever has it now.
-- name: doubt_key
insert into business_keys (tenant, tool, value, mode, window_us, task, key, state, until_at)
select tenant, business_rule ->> 'tool', business_rule ->> 'value', business_rule ->> 'mode',
    business_rule ->> 'window_us', task, key, 'doubt', null
from operations
where tenant = :tenant and task = :task and key = :key and business_rule is not null
on conflict (tenant, tool, value, task, key) do update set state = 'doubt', until_at = null
returning tool, value;

-- Give up what an ended task holds, but for calls that may still have their effect.
-- name: give_up_planned_keys
delete from business_keys
where tenant = :tenant and task = :task and state = 'held'
    and not exists (
        select 1
        from operations
        where operations.tenant = business_keys.tenant and operations.task = business_keys.task
            and operations.key = business_keys.key and operations.state in ('running', 'unknown')
    );
