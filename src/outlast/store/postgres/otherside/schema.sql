-- The tables of a service on the other side of a tool, in a schema of their own. Every statement can be run again.
--
-- Lock order: epoch row, key row.

create schema if not exists outlast_otherside;

-- One row a key. Only immutable columns are indexed, so that an answer is written in place.
create table if not exists outlast_otherside.keys (
    scope text not null check (char_length(scope) <= 255),
    key text not null check (char_length(key) between 1 and 255 and key !~ '[[:cntrl:]]'),
    fingerprint bytea not null,
    state text not null check (state in ('working', 'answered', 'not_kept')),
    holder text not null,
    takeovers integer not null default 0,
    lease_until bigint not null,
    expires_at bigint not null,
    status integer,
    headers text,
    body bytea,
    primary key (scope, key),
    check ((state = 'working') = (status is null)),
    check ((state = 'answered') = (body is not null))
) with (fillfactor = 70);
create index if not exists keys_expire on outlast_otherside.keys (expires_at);

-- The highest fencing number seen of each subject.
create table if not exists outlast_otherside.epochs (
    scope text not null check (char_length(scope) <= 255),
    subject text not null check (char_length(subject) <= 300),
    epoch bigint not null,
    expires_at bigint not null,
    primary key (scope, subject)
);
create index if not exists epochs_expire on outlast_otherside.epochs (expires_at);

-- The events that each consumer has seen.
create table if not exists outlast_otherside.inbox (
    consumer text not null check (char_length(consumer) <= 120),
    event text not null check (char_length(event) between 1 and 255),
    seen_at bigint not null,
    primary key (consumer, event)
);
create index if not exists inbox_seen on outlast_otherside.inbox (seen_at);

create or replace function outlast_otherside.now_us() returns bigint
language sql volatile as $$
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint
$$;

-- Note the epoch, then claim the key or say why not. Claimed by an insert; what the insert runs into is read in a
-- statement of its own, and changed only by comparing who holds it.
create or replace function outlast_otherside.claim(
    in_scope text, in_key text, in_holder text, in_fingerprint bytea, in_lease_us bigint, in_keep_us bigint,
    in_subject text, in_epoch bigint, in_keep_epoch_us bigint,
    out kind text, out takeovers integer, out status integer, out headers text, out body bytea,
    out wait_us bigint, out epoch bigint
)
language plpgsql as $$
declare
    held outlast_otherside.keys;
    now_us bigint;
begin
    takeovers := 0;
    wait_us := 0;
    epoch := 0;
    if in_epoch is not null then
        now_us := outlast_otherside.now_us();
        -- Locks the row even where it changes nothing, so that nobody raises the number before this commits.
        insert into outlast_otherside.epochs as seen (scope, subject, epoch, expires_at)
        values (in_scope, in_subject, in_epoch, now_us + in_keep_epoch_us)
        on conflict on constraint epochs_pkey do update
        set epoch = excluded.epoch, expires_at = excluded.expires_at
        where seen.epoch < excluded.epoch
            or (seen.epoch = excluded.epoch and seen.expires_at < now_us + in_keep_epoch_us / 2);
        select e.epoch into strict epoch
        from outlast_otherside.epochs e
        where e.scope = in_scope and e.subject = in_subject;
        if epoch > in_epoch then
            kind := 'stale_epoch';
            return;
        end if;
    end if;
    for turn in 1..20 loop
        now_us := outlast_otherside.now_us();
        insert into outlast_otherside.keys (scope, key, fingerprint, state, holder, lease_until, expires_at)
        values (
            in_scope, in_key, in_fingerprint, 'working', in_holder, now_us + in_lease_us, now_us + in_keep_us
        )
        on conflict on constraint keys_pkey do nothing;
        if found then
            kind := 'claimed';
            return;
        end if;
        select * into held
        from outlast_otherside.keys k
        where k.scope = in_scope and k.key = in_key;
        continue when not found;
        takeovers := held.takeovers;
        if held.holder = in_holder and held.state = 'working' then
            kind := 'claimed'; -- asked again, since the answer was lost
            return;
        end if;
        now_us := outlast_otherside.now_us();
        if held.expires_at <= now_us and (held.state <> 'working' or held.lease_until <= now_us) then
            delete from outlast_otherside.keys k
            where k.scope = in_scope and k.key = in_key and k.holder = held.holder and k.state = held.state
                and k.expires_at <= now_us and (k.state <> 'working' or k.lease_until <= now_us);
            continue;
        end if;
        if held.fingerprint <> in_fingerprint then
            kind := 'other_content';
            return;
        end if;
        if held.state <> 'working' then
            kind := held.state;
            status := held.status;
            headers := held.headers;
            body := held.body;
            return;
        end if;
        if held.lease_until > now_us then
            kind := 'in_flight';
            wait_us := held.lease_until - now_us;
            return;
        end if;
        -- A renewal that came between is seen when the row is looked at again under its lock.
        update outlast_otherside.keys k
        set holder = in_holder, takeovers = k.takeovers + 1, lease_until = now_us + in_lease_us,
            expires_at = now_us + in_keep_us
        where k.scope = in_scope and k.key = in_key and k.holder = held.holder and k.state = 'working'
            and k.lease_until <= now_us
        returning k.takeovers into takeovers;
        if found then
            kind := 'claimed';
            return;
        end if;
    end loop;
    kind := 'in_flight';
end
$$;
