-- Business keys: asked for by intents, given up or done by outcomes, settlements and endings.
--
-- Lock order: the file's one writer lock. What a gate reads of a key cannot change before it takes it.

-- Say whether there are any, so that those who have none pay for one look a transaction.
-- name: any_keys
select 1
from business_keys
limit 1;

-- Read who holds a key.
-- name: read_key
select task, key, state, until_at
from business_keys
where tenant = :tenant and tool = :tool and value = :value;

-- Take a key that nobody else holds.
-- name: take_key
insert into business_keys (tenant, tool, value, mode, window_us, task, key, state, until_at)
values (:tenant, :tool, :value, :mode, :window_us, :task, :key, 'held', null)
on conflict (tenant, tool, value) do update
set mode = excluded.mode, window_us = excluded.window_us, task = excluded.task, key = excluded.key, state = 'held',
    until_at = null;

-- Give up what an operation holds.
-- name: give_up_key
delete from business_keys
where tenant = :tenant and task = :task and key = :key and state = 'held';

-- Give up what an operation holds beside the key of its new intent.
-- name: give_up_other_keys
delete from business_keys
where tenant = :tenant and task = :task and key = :key and state = 'held' and not (tool = :tool and value = :value);

-- Let the key of an operation that succeeded stand for its window, without one for good.
-- name: finish_key
update business_keys
set state = 'done', until_at = coalesce(:now + window_us, 9223372036854775807)
where tenant = :tenant and task = :task and key = :key and state = 'held' and mode = 'once';

-- Hold again the key of an operation whose success is in doubt.
-- name: hold_key_again
update business_keys
set state = 'held', until_at = null
where tenant = :tenant and task = :task and key = :key and state = 'done';

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
