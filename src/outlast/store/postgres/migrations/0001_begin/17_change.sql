-- Tables of forks, acceptance and outside sessions.

-- Calls that the task which a fork began with has made behind the fork, under the keys that were sent.
create table outlast.issued (
    tenant text collate "C" not null,
    task text collate "C" not null,
    key text collate "C" not null,
    kind text not null,
    name text not null,
    state text not null,
    request text not null,
    decision text,
    effect text not null,
    attempt integer not null check (attempt >= 1),
    turn integer not null,
    arguments text,
    idempotency_key text not null,
    first_intent_at bigint not null,
    intent_at bigint not null,
    deadline_at bigint not null,
    visible_at bigint not null,
    primary key (tenant, task, key)
);

-- Verdicts on finished work; the highest number of a round stands.
create table outlast.acceptances (
    tenant text collate "C" not null,
    task text collate "C" not null,
    round integer not null,
    number integer not null check (number >= 1),
    verdict text not null check (verdict in ('accepted', 'rejected')),
    by_whom text not null,
    reason text not null,
    evidence text not null,
    at bigint not null,
    primary key (tenant, task, round, number)
);

-- Conversations and runs at providers, and the one task that holds each.
create table outlast.outside (
    tenant text collate "C" not null,
    provider text collate "C" not null check (provider <> ''),
    session text collate "C" not null check (session <> ''),
    run text collate "C" not null,
    task text collate "C" not null,
    epoch bigint not null,
    attached_at bigint not null,
    last_event text,
    last_event_at bigint,
    primary key (tenant, provider, session, run)
) with (fillfactor = 70);

create index outside_task on outlast.outside (tenant, task);

-- By it an operator sees which versions are still needed, whatever has ended.
create index tasks_waiting on outlast.tasks (lane) where state = 'waiting';
