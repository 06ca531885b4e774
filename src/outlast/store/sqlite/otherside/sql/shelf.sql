-- The shelf's statements. Lock order: the file's one writer lock; every transaction begins with it.

-- Note an epoch, unless a higher one is noted.
-- name: note_epoch
insert into outlast_otherside_epochs (scope, subject, epoch, expires_at)
values (:scope, :subject, :epoch, :expires_at)
on conflict (scope, subject) do update
set epoch = excluded.epoch, expires_at = excluded.expires_at
where epoch <= excluded.epoch;

-- Read the highest epoch of a subject.
-- name: read_epoch
select epoch
from outlast_otherside_epochs
where scope = :scope and subject = :subject;

-- Forget a key whose time is over, unless somebody works on it.
-- name: forget_expired
delete from outlast_otherside_keys
where scope = :scope and key = :key and expires_at <= :now and (state <> 'working' or lease_until <= :now);

-- Claim a key that nobody has.
-- name: claim
insert into outlast_otherside_keys (scope, key, fingerprint, state, holder, lease_until, expires_at)
values (:scope, :key, :fingerprint, 'working', :holder, :lease_until, :expires_at)
on conflict (scope, key) do nothing
returning 1;

-- Read how a key stands.
-- name: look
select state, holder, fingerprint, takeovers, status, headers, body, lease_until
from outlast_otherside_keys
where scope = :scope and key = :key;

-- Take over a key from a holder whose lease has run out.
-- name: take_over
update outlast_otherside_keys
set holder = :holder, takeovers = takeovers + 1, lease_until = :lease_until, expires_at = :expires_at
where scope = :scope and key = :key and holder = :seen and state = 'working' and lease_until <= :now
returning 1;

-- Renew the lease of a holder.
-- name: renew
update outlast_otherside_keys
set lease_until = :lease_until
where scope = :scope and key = :key and holder = :holder and state = 'working'
returning 1;

-- Keep an answer, unless another holds the key.
-- name: answer
update outlast_otherside_keys
set state = case when :body is null then 'not_kept' else 'answered' end, status = :status, headers = :headers,
    body = :body
where scope = :scope and key = :key and holder = :holder and (state = 'working' or status = :status)
returning 1;

-- Forget a key that was not worked on.
-- name: forget
delete from outlast_otherside_keys
where scope = :scope and key = :key and holder = :holder and state = 'working' and takeovers = 0
returning 1;

-- Say whether a holder has its key.
-- name: confirm
select 1
from outlast_otherside_keys
where scope = :scope and key = :key and holder = :holder and state = 'working';

-- Forget keys that were kept for their time.
-- name: sweep_keys
delete from outlast_otherside_keys
where expires_at <= :now and (state <> 'working' or lease_until <= :now)
returning 1;

-- Forget epochs that nobody has shown for their time.
-- name: sweep_epochs
delete from outlast_otherside_epochs
where expires_at <= :now
returning 1;

-- Note an event for a consumer, once.
-- name: once
insert into outlast_otherside_inbox (consumer, event, seen_at)
values (:consumer, :event, cast(unixepoch('subsec') * 1000000 as integer))
on conflict (consumer, event) do nothing
returning 1;

-- Forget events that were noted long ago.
-- name: sweep_inbox
delete from outlast_otherside_inbox
where seen_at <= cast(unixepoch('subsec') * 1000000 as integer) - :keep_us
returning 1;
