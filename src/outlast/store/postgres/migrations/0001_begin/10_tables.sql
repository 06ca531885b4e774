-- The first tables. Instants are whole microseconds since the epoch, payloads are JSON text that nothing here reads.
--
-- Names sort by their bytes (collate "C"), as they do in the program. Hot tables have one index and no foreign keys:
-- every key begins with the tenant, and the verbs write rows together. Tables whose rows are updated leave room in
-- each page, so that an update stays in it and adds no index entry. Tables whose rows come and go are vacuumed early
-- and never truncated, since that takes a lock that everybody queues behind.
--
-- In hot tables what one column may hold stands in its domain, not in a check of the table: the server reads the text of
-- every check of a table anew in every statement that writes to it, and looks at all of them for each row, also where an
-- update changes none of their columns. A domain is read once a connection, and looked at where its column is written.
-- The lists are those of outlast.core.transitions.

-- Whether a caller's key or id can be addressed: 1 to 255 characters, none of them a control character (C0, DEL, C1), and
-- not only white space. That is spelled out (Unicode's property White_Space, but for controls), since what \s stands for
-- depends on the collation. outlast.core.ids has the same rules.
create function outlast.is_key(p_key text) returns boolean language sql immutable parallel safe
return char_length(p_key) between 1 and 255
    and p_key ~ '[^ \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]'
    and p_key !~ '[\u0001-\u001f\u007f-\u009f]';

create domain outlast.key_text as text collate "C" check (outlast.is_key(value));
create domain outlast.some_text as text collate "C" check (value <> '');
create domain outlast.from_zero as bigint check (value >= 0);
create domain outlast.small_from_zero as integer check (value >= 0);
create domain outlast.from_one as bigint check (value >= 1);
create domain outlast.small_from_one as integer check (value >= 1);
create domain outlast.task_state as text
    check (value in ('queued', 'running', 'waiting', 'succeeded', 'failed', 'cancelled'));
create domain outlast.final_state as text check (value in ('succeeded', 'failed', 'cancelled'));
create domain outlast.wait_reason as text
    check (value in ('timer', 'signal', 'approval', 'reconciliation', 'child', 'limit', 'operator'));
create domain outlast.attempt_end as text
    check (value in ('succeeded', 'failed', 'suspended', 'released', 'cancelled', 'lost'));
create domain outlast.operation_kind as text
    check (value in ('step', 'model', 'tool', 'timer', 'signal', 'child', 'compensation', 'value'));
create domain outlast.operation_state as text
    check (value in ('planned', 'approved', 'running', 'succeeded', 'failed', 'unknown'));
create domain outlast.effect as text check (value in ('read', 'idempotent', 'keyed', 'queryable', 'manual'));

-- The head: narrow, and what everybody locks.
create table outlast.tasks (
    tenant outlast.some_text not null,
    id outlast.key_text not null,
    state outlast.task_state not null,
    reason outlast.wait_reason,
    epoch outlast.from_zero not null default 0,
    round outlast.small_from_one not null default 1,
    facts outlast.from_zero not null default 0,
    last_event outlast.from_zero not null default 0,
    lane bigint not null,
    deadline_at bigint,
    cancelling boolean not null default false,
    -- With cancelling: what it has done is undone before it ends.
    undoing boolean not null default false,
    children outlast.small_from_zero not null default 0,
    primary key (tenant, id),
    check ((state = 'waiting') = (reason is not null) and (cancelling or not undoing))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- What the caller asked for. The unique index is what claims an idempotency key.
create table outlast.inputs (
    tenant text collate "C" not null,
    task text collate "C" not null,
    key outlast.key_text,
    request_digest text not null,
    agent text not null,
    version_asked text not null,
    pool text not null,
    priority integer not null,
    input text not null,
    user_name text,
    trace text,
    announce boolean not null,
    submitted_at bigint not null,
    parent text collate "C",
    parent_key text collate "C",
    detached boolean not null default false,
    depth outlast.small_from_zero not null default 0,
    budget text,
    forked_from text collate "C",
    primary key (tenant, task),
    check ((parent is null) = (parent_key is null))
);

create unique index inputs_key on outlast.inputs (tenant, key) where key is not null;
create index inputs_parent on outlast.inputs (tenant, parent, task) where parent is not null;

-- Where queue entries stand. No live entry of a lane lies below its mark, and none that may still become visible.
create table outlast.lanes (
    id bigint generated always as identity primary key,
    pool text collate "C" not null,
    agent text collate "C" not null,
    version text collate "C" not null,
    tenant text collate "C" not null,
    priority integer not null,
    weight outlast.small_from_one not null default 1,
    mark_xid xid8 not null default '0',
    mark_seq bigint not null default 0,
    served bigint not null default 0,
    unique (pool, agent, version, tenant, priority)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Entries are ordered by the transaction that wrote them, then by sequence: a transaction that commits late brings its
-- entries in below those already seen, and the marks know how far below that can be.
create sequence outlast.queue_seq cache 32;

create table outlast.queue (
    lane bigint not null,
    xid xid8 not null default pg_current_xact_id(),
    seq bigint not null default nextval('outlast.queue_seq'),
    tenant text collate "C" not null,
    task text collate "C" not null,
    primary key (lane, xid, seq)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

create table outlast.leases (
    tenant text collate "C" not null,
    task text collate "C" not null,
    epoch bigint not null,
    round integer not null,
    session text collate "C" not null,
    version text not null,
    config text not null,
    started_at bigint not null,
    -- The head's facts when something was posted that the worker has not heard of; 0 for nothing.
    news bigint not null default 0,
    primary key (tenant, task)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

create index leases_session on outlast.leases (session);
create index leases_news on outlast.leases (session) where news > 0;

create table outlast.attempts (
    tenant text collate "C" not null,
    task text collate "C" not null,
    epoch bigint not null,
    round integer not null,
    session text not null,
    worker text not null,
    version text not null,
    config text not null,
    started_at bigint not null,
    ended_at bigint not null,
    "end" outlast.attempt_end not null,
    primary key (tenant, task, epoch)
);

create table outlast.sessions (
    id text collate "C" primary key,
    name text not null,
    serves text not null,
    started_at bigint not null,
    expires_at bigint not null,
    lost_at bigint,
    fence bigint not null default 0
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);

-- One row a writer: its last batch. The number is part of the key so that a batch is found by its own number; under
-- the id alone every version that a long snapshot holds back would be walked through at every flush.
create table outlast.writers (
    id text collate "C" not null,
    number bigint not null,
    verdicts text not null,
    updated_at bigint not null,
    primary key (id, number)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

create table outlast.operations (
    tenant text collate "C" not null,
    task text collate "C" not null,
    key outlast.some_text not null,
    position integer not null,
    kind outlast.operation_kind not null,
    name text not null,
    state outlast.operation_state not null,
    request text not null,
    decision text,
    effect outlast.effect,
    attempt integer not null default 0,
    turn integer not null default 0,
    epoch bigint not null,
    arguments text,
    result text,
    error text,
    created_at bigint not null,
    intent_at bigint,
    first_intent_at bigint,
    deadline_at bigint,
    -- Until when an effect of the last attempt may still show, as the tool said at the intent.
    visible_at bigint,
    due_at bigint,
    ended_at bigint,
    settled_by text,
    lost boolean not null default false check (not lost or state = 'failed'),
    business_key text,
    -- The key of the last intent as a whole, so that late evidence can bring it back; see BusinessKey.stored.
    business_rule text,
    idempotency_key text,
    usage text,
    primary key (tenant, task, key)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- The reconciliation queue: a row exists exactly while its operation is unknown. Without a time to ask only a person can
-- settle it. claimed_by is who took it, or the turn under which it was put back: a turn puts back once.
create table outlast.unsettled (
    tenant text collate "C" not null,
    task text collate "C" not null,
    key text collate "C" not null,
    since bigint not null,
    ask_at bigint,
    asked integer not null default 0 check (asked >= 0),
    unusable integer not null default 0 check (unusable >= 0),
    claimed_until bigint not null default 0,
    claimed_by text not null default '',
    sender_gone boolean not null default false,
    why text not null default '',
    -- Settled as to be sent again: nobody asks any more, and the intent of the resend takes it out.
    resend boolean not null default false,
    primary key (tenant, task, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);

create index unsettled_due on outlast.unsettled (ask_at, tenant, task, key) where ask_at is not null;

-- How the unknowns of a tool ended, counted as they are settled, so that nobody reads through the ledger for it. A
-- settlement counts once, also one that is contradicted later.
create table outlast.settled_counts (
    tenant text collate "C" not null check (tenant <> ''),
    tool text collate "C" not null check (tool <> ''),
    happened bigint not null default 0 check (happened >= 0),
    did_not_happen bigint not null default 0 check (did_not_happen >= 0),
    sent_again bigint not null default 0 check (sent_again >= 0),
    primary key (tenant, tool)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);

create table outlast.evidence (
    tenant text collate "C" not null,
    task text collate "C" not null,
    key text collate "C" not null,
    number integer not null,
    attempt integer not null,
    source text not null check (source <> ''),
    data text not null,
    at bigint not null,
    says text check (says in ('happened', 'did_not_happen', 'over')),
    primary key (tenant, task, key, number)
);

create table outlast.events (
    tenant text collate "C" not null,
    task text collate "C" not null,
    number outlast.from_one not null,
    kind outlast.some_text not null,
    epoch bigint not null,
    data text not null,
    at bigint not null,
    primary key (tenant, task, number)
);

create table outlast.timers (
    tenant text collate "C" not null,
    task text collate "C" not null,
    kind text collate "C" not null check (kind in ('wake', 'deadline')),
    due_at bigint not null,
    primary key (tenant, task, kind)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

create index timers_due on outlast.timers (due_at);

create table outlast.results (
    tenant text collate "C" not null,
    task text collate "C" not null,
    round integer not null,
    state outlast.final_state not null,
    result text,
    error text,
    effects_open integer not null,
    ended_at bigint not null,
    primary key (tenant, task, round)
);

create table outlast.outbox (
    tenant text collate "C" not null,
    task text collate "C" not null,
    number bigint not null,
    topic text not null,
    data text not null,
    created_at bigint not null,
    parked text,
    primary key (tenant, task, number)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off);

-- How long a provider asked everybody to wait; rows that are over go with a sweep.
create table outlast.provider_waits (
    tenant text collate "C" not null,
    provider text collate "C" not null check (provider <> ''),
    until_at bigint not null,
    primary key (tenant, provider)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);

-- What a call is about in the business's own words, and which operation has it: held by one until there is an outcome,
-- done for a window after a success; in doubt, beside these, where an outcome was contradicted, until it is settled. A
-- row without a task is one that somebody has reserved; none is ever committed.
create table outlast.business_keys (
    tenant text collate "C" not null,
    tool text collate "C" not null check (tool <> ''),
    value text collate "C" not null check (outlast.is_key(value)),
    mode text not null check (mode in ('lock', 'once')),
    task text collate "C" not null,
    key text collate "C" not null,
    state text not null check (state in ('held', 'doubt', 'done')),
    until_at bigint,
    window_us bigint,
    primary key (tenant, tool, value, task, key),
    check ((state = 'done') = (until_at is not null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = off);

create unique index business_keys_held on outlast.business_keys (tenant, tool, value) where state = 'held';

create index business_keys_holder on outlast.business_keys (tenant, task, key);

-- Switches that stop new intents. The tenant * is everybody.
create table outlast.pauses (
    tenant text collate "C" not null check (tenant <> ''),
    scope text collate "C" not null check (scope <> ''),
    reason text not null,
    by_whom text not null,
    at bigint not null,
    primary key (tenant, scope)
);

create table outlast.audit (
    tenant text collate "C" not null check (tenant <> ''),
    number bigint generated always as identity,
    at bigint not null,
    who text not null check (who <> ''),
    what text not null check (what <> ''),
    subject text not null,
    reason text not null,
    data text not null,
    primary key (tenant, number)
);
