-- Tables of facts that reach a task from outside, and of what people decide.
--
-- inbox: what lies before a task. A row stays after it was taken, since its key still tells a repeat from a new signal.
create table outlast.inbox (
    tenant text collate "C" not null,
    task text collate "C" not null,
    number bigint not null check (number >= 1),
    kind text not null check (kind in ('signal', 'child')),
    name text collate "C" not null check (name <> ''),
    key text collate "C" check (outlast.is_key(key)),
    digest text not null,
    data text not null,
    at bigint not null,
    taken_by text collate "C",
    primary key (tenant, task, number)
) with (fillfactor = 85);

create unique index inbox_key on outlast.inbox (tenant, task, name, key) where key is not null;
create index inbox_open on outlast.inbox (tenant, task, number) where taken_by is null;

-- What a task's end has left for other tasks: a child's end for its parent, a cancel for a child. Found by being there,
-- and by its name, where the parent's worker has heard of the end by itself.
create table outlast.posts (
    tenant text collate "C" not null,
    task text collate "C" not null,
    seq bigint generated always as identity,
    kind text not null check (kind in ('child', 'cancel')),
    name text collate "C" not null,
    data text not null,
    primary key (tenant, task, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

-- The name stands before the task, so that nobody takes this for the primary key and walks through all of a task's posts.
create index posts_name on outlast.posts (tenant, name, task, seq);

-- Tasks whose calls a switch holds back: written with the refusal of an intent, by the switch that stood. Those whose
-- switch stands no more are found by that, told, and forgotten.
create table outlast.held_tasks (
    by_tenant text collate "C" not null check (by_tenant <> ''),
    scope text collate "C" not null check (scope <> ''),
    tenant text collate "C" not null,
    task text collate "C" not null,
    primary key (by_tenant, scope, tenant, task)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

create index held_tasks_task on outlast.held_tasks (tenant, task);

-- Questions to people. id is <task>:<key>~<number>.
create table outlast.approvals (
    tenant text collate "C" not null,
    id text collate "C" not null,
    task text collate "C" not null,
    key text collate "C" not null,
    number integer not null check (number >= 1),
    subject text not null check (subject in ('call', 'question')),
    state text not null check (state in ('pending', 'approved', 'rejected', 'expired', 'withdrawn', 'used')),
    name text not null,
    fingerprint text not null check (fingerprint <> ''),
    shown text not null,
    reason text not null,
    policy text not null,
    target text,
    roles text[] not null,
    quorum integer not null check (quorum >= 1),
    four_eyes boolean not null,
    requester text,
    votes integer not null default 0,
    arguments text,
    edited boolean not null default false,
    answer text,
    created_at bigint not null,
    expires_at bigint,
    decided_at bigint,
    decided_by text,
    decision_reason text,
    used_at bigint,
    spent boolean not null default false,
    primary key (tenant, id)
) with (fillfactor = 70);

-- The task stands before the tenant, so that nobody takes this for the primary key and walks through all of a tenant's.
create unique index approvals_operation on outlast.approvals (task, tenant, key, number);
create index approvals_pending on outlast.approvals (tenant, created_at, id) where state = 'pending';

create table outlast.votes (
    tenant text collate "C" not null,
    approval text collate "C" not null,
    number integer not null,
    who text not null check (who <> ''),
    verdict text not null check (verdict in ('approve', 'reject')),
    fingerprint text not null,
    reason text not null,
    via text not null,
    at bigint not null,
    primary key (tenant, approval, number)
);

-- Standing rules. changed: a number out of the same sequence for every change, so that a list has a version.
create table outlast.rules (
    tenant text collate "C" not null check (tenant <> ''),
    number bigint generated always as identity,
    tool text collate "C" not null check (tool <> ''),
    verdict text not null check (verdict in ('allow', 'deny')),
    bounds text not null,
    by_whom text not null,
    reason text not null,
    at bigint not null,
    changed bigint not null,
    withdrawn_at bigint,
    primary key (tenant, number)
);

create index rules_tool on outlast.rules (tenant, tool, changed);
