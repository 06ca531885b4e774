-- The tables of a service on the other side of a tool. Every statement can be run again.

-- One row a key.
create table if not exists outlast_otherside_keys (
    scope text not null check (length(scope) <= 255),
    key text not null check (
        length(key) between 1 and 255
        and key not glob '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
    ),
    fingerprint blob not null,
    state text not null check (state in ('working', 'answered', 'not_kept')),
    holder text not null,
    takeovers integer not null default 0,
    lease_until integer not null,
    expires_at integer not null,
    status integer,
    headers text,
    body blob,
    primary key (scope, key),
    check ((state = 'working') = (status is null)),
    check ((state = 'answered') = (body is not null))
) strict;
create index if not exists outlast_otherside_keys_expire on outlast_otherside_keys (expires_at);

-- The highest fencing number seen of each subject.
create table if not exists outlast_otherside_epochs (
    scope text not null check (length(scope) <= 255),
    subject text not null check (length(subject) <= 300),
    epoch integer not null,
    expires_at integer not null,
    primary key (scope, subject)
) strict, without rowid;
create index if not exists outlast_otherside_epochs_expire on outlast_otherside_epochs (expires_at);

-- The events that each consumer has seen.
create table if not exists outlast_otherside_inbox (
    consumer text not null check (length(consumer) <= 120),
    event text not null check (length(event) between 1 and 255),
    seen_at integer not null,
    primary key (consumer, event)
) strict, without rowid;
create index if not exists outlast_otherside_inbox_seen on outlast_otherside_inbox (seen_at);
