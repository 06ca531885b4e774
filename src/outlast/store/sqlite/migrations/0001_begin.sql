-- The first tables. Instants are whole microseconds since the epoch, payloads are JSON text.
--
-- Tables that are written often have one B-tree each (without rowid). There are no foreign keys: every key begins
-- with the tenant, and the verbs write rows together. The check lists are those of outlast.core.transitions.
-- They are chains of comparisons: of a list behind ``in`` with three values or more SQLite makes a table each time that a
-- statement checks it, which costs more than the row does.
--
-- A caller's key or id has 1 to 255 characters, none of them a control character (C0, DEL, C1), and not only white space
-- (the characters of Unicode's property White_Space), as outlast.core.ids has it.

-- The head: narrow, and what everybody locks.
create table tasks (
    tenant text not null check (tenant <> ''),
    id text not null check (
        length(id) between 1 and 255
        and instr(cast(id as blob), x'00') = 0
        and id not glob '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
        and id glob '*[^' || char(32, 160, 5760, 8192) || '-' || char(8202, 8232, 8233, 8239, 8287, 12288) || ']*'
    ),
    state text not null check (
        state = 'queued' or state = 'running' or state = 'waiting' or state = 'succeeded' or state = 'failed'
            or state = 'cancelled'
    ),
    reason text check (
        reason = 'timer' or reason = 'signal' or reason = 'approval' or reason = 'reconciliation'
            or reason = 'child' or reason = 'limit' or reason = 'operator'
    ),
    epoch integer not null default 0 check (epoch >= 0),
    round integer not null default 1 check (round >= 1),
    facts integer not null default 0 check (facts >= 0),
    last_event integer not null default 0 check (last_event >= 0),
    lane integer not null,
    deadline_at integer,
    cancelling integer not null default 0 check (cancelling in (0, 1)),
    -- With cancelling: what it has done is undone before it ends.
    undoing integer not null default 0 check (undoing in (0, 1) and undoing <= cancelling),
    children integer not null default 0 check (children >= 0),
    primary key (tenant, id),
    check ((state = 'waiting') = (reason is not null))
) strict, without rowid;

-- What the caller asked for. The unique index is what claims an idempotency key.
create table inputs (
    tenant text not null,
    task text not null,
    key text check (
        length(key) between 1 and 255
        and instr(cast(key as blob), x'00') = 0
        and key not glob '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
        and key glob '*[^' || char(32, 160, 5760, 8192) || '-' || char(8202, 8232, 8233, 8239, 8287, 12288) || ']*'
    ),
    request_digest text not null,
    agent text not null,
    version_asked text not null,
    pool text not null,
    priority integer not null,
    input text not null,
    user_name text,
    trace text,
    announce integer not null check (announce in (0, 1)),
    submitted_at integer not null,
    parent text,
    parent_key text,
    detached integer not null default 0 check (detached in (0, 1)),
    depth integer not null default 0 check (depth >= 0),
    budget text,
    forked_from text,
    primary key (tenant, task),
    check ((parent is null) = (parent_key is null))
) strict, without rowid;

create unique index inputs_key on inputs (tenant, key) where key is not null;
create index inputs_parent on inputs (tenant, parent, task) where parent is not null;

-- Where queue entries stand. ``served`` is the tenant's place in the taking of turns, in parts of one task.
create table lanes (
    id integer primary key,
    pool text not null,
    agent text not null,
    version text not null,
    tenant text not null,
    priority integer not null,
    weight integer not null default 1 check (weight >= 1),
    served integer not null default 0,
    unique (pool, agent, version, tenant, priority)
) strict;

-- By it a claim finds a tenant's place, wherever it was served last.
create index lanes_tenant on lanes (tenant);

-- One writer at a time: commit order is number order, so lanes need no marks.
create table queue (
    lane integer not null,
    seq integer not null,
    tenant text not null,
    task text not null,
    primary key (lane, seq)
) strict, without rowid;

-- By it the entry of a task that ends while it is queued is found, wherever it stands.
create index queue_task on queue (tenant, task);

-- Counters that must outlive their rows: the age of queue entries, the changes of standing rules.
create table sequences (
    name text primary key not null,
    value integer not null
) strict, without rowid;

insert into sequences (name, value) values ('queue', 0), ('rules', 0);

create table leases (
    tenant text not null,
    task text not null,
    epoch integer not null,
    round integer not null,
    session text not null,
    version text not null,
    config text not null,
    started_at integer not null,
    -- The head's facts when something was posted that the worker has not heard of; 0 for nothing.
    news integer not null default 0,
    primary key (tenant, task)
) strict, without rowid;

create index leases_session on leases (session);
create index leases_news on leases (session) where news > 0;

create table attempts (
    tenant text not null,
    task text not null,
    epoch integer not null,
    round integer not null,
    session text not null,
    worker text not null,
    version text not null,
    config text not null,
    started_at integer not null,
    ended_at integer not null,
    "end" text not null check (
        "end" = 'succeeded' or "end" = 'failed' or "end" = 'suspended' or "end" = 'released' or "end" = 'cancelled'
            or "end" = 'lost'
    ),
    primary key (tenant, task, epoch)
) strict, without rowid;

create table sessions (
    id text primary key not null,
    name text not null,
    serves text not null,
    started_at integer not null,
    expires_at integer not null,
    lost_at integer,
    fence integer not null default 0
) strict, without rowid;

create table writers (
    id text primary key not null,
    number integer not null,
    verdicts text not null,
    updated_at integer not null
) strict, without rowid;

create table operations (
    tenant text not null,
    task text not null,
    key text not null check (key <> ''),
    position integer not null,
    kind text not null check (
        kind = 'step' or kind = 'model' or kind = 'tool' or kind = 'timer' or kind = 'signal' or kind = 'child'
            or kind = 'compensation' or kind = 'value'
    ),
    name text not null,
    state text not null check (
        state = 'planned' or state = 'approved' or state = 'running' or state = 'succeeded' or state = 'failed'
            or state = 'unknown'
    ),
    request text not null,
    decision text,
    effect text check (
        effect = 'read' or effect = 'idempotent' or effect = 'keyed' or effect = 'queryable' or effect = 'manual'
    ),
    attempt integer not null default 0,
    turn integer not null default 0,
    epoch integer not null,
    arguments text,
    result text,
    error text,
    created_at integer not null,
    intent_at integer,
    first_intent_at integer,
    deadline_at integer,
    -- Until when an effect of the last attempt may still show, as the tool said at the intent.
    visible_at integer,
    due_at integer,
    ended_at integer,
    settled_by text,
    lost integer not null default 0 check (lost in (0, 1) and (not lost or state = 'failed')),
    business_key text,
    -- The key of the last intent as a whole, so that late evidence can bring it back; see BusinessKey.stored.
    business_rule text,
    idempotency_key text,
    usage text,
    primary key (tenant, task, key)
) strict, without rowid;

-- The reconciliation queue: a row exists exactly while its operation is unknown. ``ask_at`` is null where only a
-- person can settle it; ``claimed_by`` is whoever looks at it until ``claimed_until``, or ``:`` and the turn at
-- which it was put back.
create table unsettled (
    tenant text not null,
    task text not null,
    key text not null,
    since integer not null,
    ask_at integer,
    asked integer not null default 0 check (asked >= 0),
    unusable integer not null default 0 check (unusable between 0 and asked),
    claimed_until integer not null default 0,
    claimed_by text not null default '',
    sender_gone integer not null default 0 check (sender_gone in (0, 1)),
    why text not null default '',
    -- Settled as to be sent again: nobody asks any more, and the intent of the resend takes it out.
    resend integer not null default 0 check (resend in (0, 1)),
    primary key (tenant, task, key)
) strict, without rowid;

-- By it the settler finds what is due, whatever stands in the queue for people.
create index unsettled_due on unsettled (ask_at) where ask_at is not null;

-- How the unknowns of a tool ended, counted as they are settled, so that nobody reads through the ledger for it. A
-- settlement counts once, also one that is contradicted later.
create table settled_counts (
    tenant text not null check (tenant <> ''),
    tool text not null check (tool <> ''),
    happened integer not null default 0 check (happened >= 0),
    did_not_happen integer not null default 0 check (did_not_happen >= 0),
    sent_again integer not null default 0 check (sent_again >= 0),
    primary key (tenant, tool)
) strict, without rowid;

-- How long a provider asked everybody to wait.
create table provider_waits (
    tenant text not null check (tenant <> ''),
    provider text not null check (provider <> ''),
    until_at integer not null,
    primary key (tenant, provider)
) strict, without rowid;

-- What calls are about in the business's own words: at most one operation holds a key. Beside it stand successes, done
-- for a window, and operations whose outcome was contradicted, in doubt until they are settled.
create table business_keys (
    tenant text not null check (tenant <> ''),
    tool text not null check (tool <> ''),
    value text not null check (
        length(value) between 1 and 255
        and instr(cast(value as blob), x'00') = 0
        and value not glob '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
        and value glob '*[^' || char(32, 160, 5760, 8192) || '-' || char(8202, 8232, 8233, 8239, 8287, 12288) || ']*'
    ),
    mode text not null check (mode in ('lock', 'once')),
    window_us integer,
    task text not null,
    key text not null,
    state text not null check (state = 'held' or state = 'doubt' or state = 'done'),
    until_at integer,
    primary key (tenant, tool, value, task, key),
    check ((state = 'done') = (until_at is not null))
) strict, without rowid;

create unique index business_keys_held on business_keys (tenant, tool, value) where state = 'held';

-- By it an operation's key is found when it has an outcome, and a task's when it ends.
create index business_keys_holder on business_keys (tenant, task, key);

-- Switches that stop new intents.
create table pauses (
    tenant text not null check (tenant <> ''),
    scope text not null check (scope <> ''),
    reason text not null,
    by_whom text not null check (by_whom <> ''),
    at integer not null,
    primary key (tenant, scope)
) strict, without rowid;

-- Who did what to what, and why. Its numbers grow; nothing is ever deleted, so none is used twice.
create table audit (
    number integer primary key,
    tenant text not null check (tenant <> ''),
    at integer not null,
    who text not null check (who <> ''),
    what text not null check (what <> ''),
    subject text not null,
    reason text not null,
    data text not null
) strict;

create index audit_tenant on audit (tenant, number);

create table evidence (
    tenant text not null,
    task text not null,
    key text not null,
    number integer not null,
    attempt integer not null,
    source text not null check (source <> ''),
    data text not null,
    at integer not null,
    says text check (says = 'happened' or says = 'did_not_happen' or says = 'over'),
    primary key (tenant, task, key, number)
) strict, without rowid;

create table events (
    tenant text not null,
    task text not null,
    number integer not null check (number >= 1),
    kind text not null check (kind <> ''),
    epoch integer not null,
    data text not null,
    at integer not null,
    primary key (tenant, task, number)
) strict, without rowid;

create table timers (
    tenant text not null,
    task text not null,
    kind text not null check (kind in ('wake', 'deadline')),
    due_at integer not null,
    primary key (tenant, task, kind)
) strict, without rowid;

create index timers_due on timers (due_at);

create table results (
    tenant text not null,
    task text not null,
    round integer not null,
    state text not null check (state = 'succeeded' or state = 'failed' or state = 'cancelled'),
    result text,
    error text,
    effects_open integer not null,
    ended_at integer not null,
    primary key (tenant, task, round)
) strict, without rowid;

-- With a rowid, so that the oldest rows are the first of the table whatever the backlog.
create table outbox (
    tenant text not null,
    task text not null,
    number integer not null,
    topic text not null,
    data text not null,
    created_at integer not null,
    parked text,
    primary key (tenant, task, number)
) strict;

-- What lies before a task. A row stays after it was taken, since its key still tells a repeat from a new signal.
create table inbox (
    tenant text not null,
    task text not null,
    number integer not null check (number >= 1),
    kind text not null check (kind in ('signal', 'child')),
    name text not null check (name <> ''),
    key text check (
        length(key) between 1 and 255
        and instr(cast(key as blob), x'00') = 0
        and key not glob '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
        and key glob '*[^' || char(32, 160, 5760, 8192) || '-' || char(8202, 8232, 8233, 8239, 8287, 12288) || ']*'
    ),
    digest text not null,
    data text not null,
    at integer not null,
    taken_by text,
    primary key (tenant, task, number)
) strict, without rowid;

create unique index inbox_key on inbox (tenant, task, name, key) where key is not null;
create index inbox_open on inbox (tenant, task, number) where taken_by is null;

-- What a task's end has left for other tasks: a child's end for its parent, a cancel for a child. Found by being there,
-- and by its name, where the parent's worker has heard of the end by itself.
create table posts (
    seq integer primary key,
    tenant text not null,
    task text not null,
    kind text not null check (kind in ('child', 'cancel')),
    name text not null,
    data text not null
) strict;

create index posts_name on posts (tenant, task, name, seq);

-- Tasks whose calls a switch holds back: written with the refusal of an intent, by the switch that stood. Those whose
-- switch stands no more are found by that, told, and forgotten.
create table held_tasks (
    by_tenant text not null check (by_tenant <> ''),
    scope text not null check (scope <> ''),
    tenant text not null,
    task text not null,
    primary key (by_tenant, scope, tenant, task)
) strict, without rowid;

create index held_tasks_task on held_tasks (tenant, task);

-- Questions to people. id is <task>:<key>~<number>; roles are a JSON list.
create table approvals (
    tenant text not null,
    id text not null,
    task text not null,
    key text not null,
    number integer not null check (number >= 1),
    subject text not null check (subject in ('call', 'question')),
    state text not null check (
        state = 'pending' or state = 'approved' or state = 'rejected' or state = 'expired' or state = 'withdrawn'
            or state = 'used'
    ),
    name text not null,
    fingerprint text not null check (fingerprint <> ''),
    shown text not null,
    reason text not null,
    policy text not null,
    target text,
    roles text not null,
    quorum integer not null check (quorum >= 1),
    four_eyes integer not null check (four_eyes in (0, 1)),
    requester text,
    votes integer not null default 0,
    arguments text,
    edited integer not null default 0 check (edited in (0, 1)),
    answer text,
    created_at integer not null,
    expires_at integer,
    decided_at integer,
    decided_by text,
    decision_reason text,
    used_at integer,
    spent integer not null default 0 check (spent in (0, 1)),
    primary key (tenant, id)
) strict, without rowid;

create unique index approvals_operation on approvals (tenant, task, key, number);
create index approvals_pending on approvals (tenant, created_at, id) where state = 'pending';

create table votes (
    tenant text not null,
    approval text not null,
    number integer not null,
    who text not null check (who <> ''),
    verdict text not null check (verdict in ('approve', 'reject')),
    fingerprint text not null,
    reason text not null,
    via text not null,
    at integer not null,
    primary key (tenant, approval, number)
) strict, without rowid;

-- Standing rules. changed: a new number for every change, so that a list has a version.
create table rules (
    tenant text not null check (tenant <> ''),
    number integer not null,
    tool text not null check (tool <> ''),
    verdict text not null check (verdict in ('allow', 'deny')),
    bounds text not null,
    by_whom text not null,
    reason text not null,
    at integer not null,
    changed integer not null,
    withdrawn_at integer,
    primary key (tenant, number)
) strict, without rowid;

create index rules_tool on rules (tenant, tool, changed);

-- Calls that the task which a fork began with has made behind the fork, under the keys that were sent.
create table issued (
    tenant text not null,
    task text not null,
    key text not null,
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
    first_intent_at integer not null,
    intent_at integer not null,
    deadline_at integer not null,
    visible_at integer not null,
    primary key (tenant, task, key)
) strict, without rowid;

-- Verdicts on finished work; the highest number of a round stands.
create table acceptances (
    tenant text not null,
    task text not null,
    round integer not null,
    number integer not null check (number >= 1),
    verdict text not null check (verdict in ('accepted', 'rejected')),
    by_whom text not null,
    reason text not null,
    evidence text not null,
    at integer not null,
    primary key (tenant, task, round, number)
) strict, without rowid;

-- Conversations and runs at providers, and the one task that holds each.
create table outside (
    tenant text not null,
    provider text not null check (provider <> ''),
    session text not null check (session <> ''),
    run text not null,
    task text not null,
    epoch integer not null,
    attached_at integer not null,
    last_event text,
    last_event_at integer,
    primary key (tenant, provider, session, run)
) strict, without rowid;

create index outside_task on outside (tenant, task);

-- By it an operator sees which versions are still needed, whatever has ended.
create index tasks_waiting on tasks (lane) where state = 'waiting';

-- The second guard of the protocol's promises, below every verb.

create trigger tasks_guard before update on tasks begin
    select case
        when new.epoch < old.epoch then raise(abort, 'the epoch of a task never falls')
        when new.round < old.round then raise(abort, 'the round of a task never falls')
        when new.last_event < old.last_event then raise(abort, 'the event numbers of a task never fall')
        when (old.state = 'succeeded' or old.state = 'failed' or old.state = 'cancelled') and new.state <> old.state
            and not (new.state = 'queued' and new.round = old.round + 1)
            then raise(abort, 'a final task state changes only to queued, in the next round')
        when old.cancelling = 1 and new.state <> 'running' and new.state <> 'cancelled'
            and not (old.undoing = 1 and new.undoing = 1 and new.state in ('queued', 'waiting'))
            then raise(abort, 'a task whose cancel stands ends as cancelled')
    end;
end;

create trigger operations_guard before update on operations
when old.state in ('succeeded', 'failed')
    and (new.state <> old.state or new.result is not old.result or new.error is not old.error)
    and not (old.state = 'failed' and new.state = 'planned')
    and not (new.state = 'unknown' and new.result is old.result and new.error is old.error)
begin
    select raise(abort, 'a recorded outcome changes only by reopening or contradicting it');
end;

-- What a question is about, and what came of it, stands; but what has ended can be spent.
create trigger approvals_guard before update on approvals begin
    select case
        when new.tenant <> old.tenant or new.id <> old.id or new.task <> old.task or new.key <> old.key
            or new.number <> old.number or new.subject <> old.subject or new.name <> old.name
            or new.reason <> old.reason or new.policy <> old.policy or new.target is not old.target
            or new.roles <> old.roles or new.quorum <> old.quorum or new.four_eyes <> old.four_eyes
            or new.requester is not old.requester or new.created_at <> old.created_at
            or new.expires_at is not old.expires_at
            then raise(abort, 'a question stays about its operation, and for the people whom it was put to')
        when old.state <> new.state
            and not (old.state = 'pending' and new.state in ('approved', 'rejected', 'expired', 'withdrawn'))
            and not (old.state = 'approved' and new.state in ('expired', 'withdrawn', 'used'))
            then raise(abort, 'an approval moves only from pending to its decision, and from approved to its end')
        when old.state <> 'pending'
            and (new.fingerprint <> old.fingerprint or new.arguments is not old.arguments
                 or new.shown <> old.shown or new.answer is not old.answer or new.votes <> old.votes
                 or new.decided_by is not old.decided_by or new.decided_at is not old.decided_at
                 or new.decision_reason is not old.decision_reason)
            then raise(abort, 'a decision never changes')
        when old.spent = 1 and new.spent = 0 then raise(abort, 'what is spent stays spent')
        when old.used_at is not null and new.used_at is not old.used_at
            then raise(abort, 'when a decision was used never changes')
    end;
end;

create trigger approvals_no_delete before delete on approvals begin
    select raise(abort, 'approvals are never deleted');
end;

create trigger votes_no_update before update on votes begin
    select raise(abort, 'votes are never changed');
end;

create trigger votes_no_delete before delete on votes begin
    select raise(abort, 'votes are never deleted');
end;

create trigger inbox_guard before update on inbox
when old.taken_by is not null or new.number <> old.number or new.kind <> old.kind or new.name <> old.name
    or new.key is not old.key or new.digest <> old.digest or new.data <> old.data
begin
    select raise(abort, 'what lies before a task is taken once, and is never changed');
end;

create trigger issued_no_update before update on issued begin
    select raise(abort, 'what was issued is never changed');
end;

create trigger issued_no_delete before delete on issued begin
    select raise(abort, 'what was issued is never deleted');
end;

create trigger acceptances_no_update before update on acceptances begin
    select raise(abort, 'verdicts are never changed');
end;

create trigger acceptances_no_delete before delete on acceptances begin
    select raise(abort, 'verdicts are never deleted');
end;

-- A key that is held is given up before another has it.
create trigger business_keys_guard before update on business_keys
when old.state = 'held' and (new.tenant <> old.tenant or new.task <> old.task or new.key <> old.key)
begin
    select raise(abort, 'a business key that is held does not change hands');
end;

create trigger audit_no_update before update on audit begin
    select raise(abort, 'the audit trail is never changed');
end;

create trigger audit_no_delete before delete on audit begin
    select raise(abort, 'the audit trail is never deleted');
end;

create trigger events_no_update before update on events begin
    select raise(abort, 'events are never changed');
end;

create trigger events_no_delete before delete on events begin
    select raise(abort, 'events are never deleted');
end;

create trigger evidence_no_update before update on evidence begin
    select raise(abort, 'evidence is never changed');
end;

create trigger evidence_no_delete before delete on evidence begin
    select raise(abort, 'evidence is never deleted');
end;

create trigger attempts_no_update before update on attempts begin
    select raise(abort, 'attempts are never changed');
end;

create trigger attempts_no_delete before delete on attempts begin
    select raise(abort, 'attempts are never deleted');
end;

create trigger results_no_update before update on results begin
    select raise(abort, 'results are never changed');
end;

create trigger results_no_delete before delete on results begin
    select raise(abort, 'results are never deleted');
end;

-- What submits tasks by the clock.
create table schedules (
    tenant text not null check (tenant <> ''),
    id text not null check (
        length(id) between 1 and 255
        and instr(cast(id as blob), x'00') = 0
        and id not glob '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
        and id glob '*[^' || char(32, 160, 5760, 8192) || '-' || char(8202, 8232, 8233, 8239, 8287, 12288) || ']*'
    ),
    revision integer not null check (revision >= 1),
    agent text not null check (agent <> ''),
    version_asked text not null,
    pool text not null check (pool <> ''),
    priority integer not null,
    input text not null,
    user_name text,
    deadline_us integer,
    timing text not null,
    missed text not null check (missed = 'skip' or missed = 'once' or missed = 'all'),
    max_missed integer not null check (max_missed >= 1),
    overlap text not null check (overlap in ('allow', 'skip')),
    jitter_us integer not null check (jitter_us >= 0),
    paused text,
    paused_by text,
    next_at integer,
    taken_until integer not null default 0,
    last_at integer,
    last_task text,
    fired integer not null default 0,
    skipped integer not null default 0,
    note text,
    noted_at integer,
    created_at integer not null,
    changed_at integer not null,
    changed_by text not null,
    primary key (tenant, id),
    check ((paused is null) = (paused_by is null))
) strict;

-- What may become due, by when.
create index schedules_due on schedules (next_at, tenant, id) where paused is null and next_at is not null;
