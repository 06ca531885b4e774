-- The shelf's statements. Lock order: epoch row, key row; no statement locks two keys but a renewal and a sweep,
-- which leave out what somebody else has locked.

-- Claim a key, or say why not.
-- name: claim
select kind, takeovers, status, headers, body, wait_us, epoch
from outlast_otherside.claim($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- Read how a key stands.
-- name: look
select state, takeovers, status, headers, body, greatest(lease_until - outlast_otherside.now_us(), 0) as wait_us
from outlast_otherside.keys
where scope = $1 and key = $2;

-- Renew what is still held. A row that is locked is confirmed by its own holder, or about to change.
-- name: renew
update outlast_otherside.keys
set lease_until = outlast_otherside.now_us() + $4
where (scope, key) in (
    select held.scope, held.key
    from unnest($1::text[], $2::text[], $3::text[]) as mine (scope, key, holder)
    join outlast_otherside.keys as held using (scope, key, holder)
    where held.state = 'working'
    for update of held skip locked
);

-- Read which of these are still held.
-- name: still_held
select held.holder
from unnest($1::text[], $2::text[], $3::text[]) as mine (scope, key, holder)
join outlast_otherside.keys as held using (scope, key, holder)
where held.state = 'working';

-- Keep an answer, unless another holds the key.
-- name: answer
update outlast_otherside.keys
set state = case when $6::bytea is null then 'not_kept' else 'answered' end, status = $4, headers = $5, body = $6
where scope = $1 and key = $2 and holder = $3 and (state = 'working' or status = $4)
returning true;

-- Forget a key that was not worked on.
-- name: forget
delete from outlast_otherside.keys
where scope = $1 and key = $2 and holder = $3 and state = 'working' and takeovers = 0
returning true;

-- Let somebody else take over at once.
-- name: lapse
update outlast_otherside.keys
set lease_until = outlast_otherside.now_us()
where scope = $1 and key = $2 and holder = $3 and state = 'working'
returning true;

-- Lock a key against a takeover until the caller's transaction ends.
-- name: confirm
select true
from outlast_otherside.keys
where scope = $1 and key = $2 and holder = $3 and state = 'working'
for share;

-- Forget keys that were kept for their time.
-- name: sweep_keys
with gone as (
    delete from outlast_otherside.keys
    where (scope, key) in (
        select scope, key
        from outlast_otherside.keys
        where expires_at <= outlast_otherside.now_us()
            and (state <> 'working' or lease_until <= outlast_otherside.now_us())
        order by expires_at
        limit $1
        for update skip locked
    )
    returning 1
)
select count(*) from gone;

-- Forget epochs that nobody has shown for their time.
-- name: sweep_epochs
with gone as (
    delete from outlast_otherside.epochs
    where (scope, subject) in (
        select scope, subject
        from outlast_otherside.epochs
        where expires_at <= outlast_otherside.now_us()
        order by expires_at
        limit $1
        for update skip locked
    )
    returning 1
)
select count(*) from gone;

-- Note an event for a consumer, once; waits for a twin's open transaction.
-- name: once
insert into outlast_otherside.inbox (consumer, event, seen_at)
values ($1, $2, outlast_otherside.now_us())
on conflict (consumer, event) do nothing
returning true;

-- Forget events that were noted long ago.
-- name: sweep_inbox
with gone as (
    delete from outlast_otherside.inbox
    where seen_at <= outlast_otherside.now_us() - $1::bigint
    returning 1
)
select count(*) from gone;
