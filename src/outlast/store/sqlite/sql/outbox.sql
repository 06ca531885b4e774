-- take_messages, confirm_messages: what the relay reads and deletes.
--
-- Lock order: none for reading; the file's one writer lock for confirming.

-- Read pending messages, the oldest first; a parked one holds back later ones of its own task only.
-- name: take_messages
select tenant, task, number, topic, data, created_at
from outbox
where parked is null
    and not exists (
        select 1
        from outbox as earlier
        where earlier.tenant = outbox.tenant and earlier.task = outbox.task and earlier.number < outbox.number
            and earlier.parked is not null
    )
order by rowid
limit :limit;

-- Delete a published message.
-- name: drop_message
delete from outbox
where tenant = :tenant and task = :task and number = :number;

-- Park a message with its reason.
-- name: park_message
update outbox
set parked = :reason
where tenant = :tenant and task = :task and number = :number;
