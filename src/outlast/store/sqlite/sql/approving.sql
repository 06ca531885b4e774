-- AskApproval, ExpireApproval, decide and the views of approvals.
--
-- Lock order: the file's one writer lock; the views take none. What is fenced: approvals by their state, which the
-- verb reads under the lock before it writes.

-- Read whether a question was asked, and how it stands.
-- name: read_approval_state
select state, subject, expires_at
from approvals
where tenant = :tenant and id = :id;

-- Put a question before people.
-- name: keep_approval
insert into approvals (tenant, id, task, key, number, subject, state, name, fingerprint, shown, reason, policy, target,
    roles, quorum, four_eyes, requester, created_at, expires_at)
values (:tenant, :id, :task, :key, :number, :subject, 'pending', :name, :fingerprint, :shown, :reason, :policy, :target,
    :roles, :quorum, :four_eyes, :requester, :now, :expires_at);

-- Record that a question's time is over.
-- name: expire_approval
update approvals
set state = 'expired'
where tenant = :tenant and id = :id and state in ('pending', 'approved');

-- Read a decision about exactly this, under exactly this policy, whose time is not over.
-- name: read_consent
select state, spent
from approvals
where tenant = :tenant and id = :id and subject = 'call' and fingerprint = :fingerprint and policy = :policy
    and (expires_at is null or expires_at > :now);

-- Say whether a person has refused a call.
-- name: read_refusal
select 1
from approvals
where tenant = :tenant and task = :task and key = :key and subject = 'call' and state = 'rejected' and spent = 0
    and fingerprint = :fingerprint and policy = :policy
limit 1;

-- Use a decision up.
-- name: use_approval
update approvals
set state = 'used', used_at = :now
where tenant = :tenant and id = :id and state = 'approved';

-- Let what was decided of an operation say nothing of a further send.
-- name: spend_approvals
update approvals
set spent = 1
where tenant = :tenant and task = :task and key = :key and state in ('used', 'rejected', 'expired');

-- Read what people said of one kind, the latest word first.
-- name: read_words
select who, fingerprint
from votes
where tenant = :tenant and approval = :id and verdict = :verdict
order by number desc;

-- Keep somebody's word.
-- name: keep_vote
insert into votes (tenant, approval, number, who, verdict, fingerprint, reason, via, at)
select :tenant, :id, coalesce(max(number), 0) + 1, :who, :verdict, :fingerprint, :reason, :via, :at
from votes
where tenant = :tenant and approval = :id;

-- Change what a question is about, as an approver asks.
-- name: edit_approval
update approvals
set fingerprint = :fingerprint, arguments = :arguments, shown = coalesce(:shown, shown), edited = 1
where tenant = :tenant and id = :id and state = 'pending';

-- Keep what the last word on a question has made of it.
-- name: decide_approval
update approvals
set state = :state, votes = :votes, answer = :answer, decided_at = :now, decided_by = :by, decision_reason = :reason
where tenant = :tenant and id = :id and state = 'pending';

-- Let a planned call be approved.
-- name: approve_operation
update operations
set state = 'approved'
where tenant = :tenant and task = :task and key = :key and state = 'planned';

-- Read an approval.
-- name: read_approval
select tenant, id, task, key, number, subject, state, name, fingerprint, shown, reason, policy, target, roles, quorum, four_eyes,
    requester, votes, arguments, edited, answer, created_at, expires_at, decided_at, decided_by, decision_reason, used_at,
    spent
from approvals
where tenant = :tenant and id = :id;

-- Read a task's approvals.
-- name: read_approvals
select tenant, id, task, key, number, subject, state, name, fingerprint, shown, reason, policy, target, roles, quorum, four_eyes,
    requester, votes, arguments, edited, answer, created_at, expires_at, decided_at, decided_by, decision_reason, used_at,
    spent
from approvals
where tenant = :tenant and task = :task
order by key, number;

-- List a tenant's pending approvals, the oldest first; found by an index that holds no others.
-- name: list_pending_approvals
select tenant, id, task, key, number, subject, state, name, fingerprint, shown, reason, policy, target, roles, quorum, four_eyes,
    requester, votes, arguments, edited, answer, created_at, expires_at, decided_at, decided_by, decision_reason, used_at,
    spent
from approvals
where tenant = :tenant and state = 'pending' and (created_at, id) > (:created_at, :id)
order by created_at, id
limit :limit;

-- List a tenant's approvals, the oldest first.
-- name: list_approvals
select tenant, id, task, key, number, subject, state, name, fingerprint, shown, reason, policy, target, roles, quorum, four_eyes,
    requester, votes, arguments, edited, answer, created_at, expires_at, decided_at, decided_by, decision_reason, used_at,
    spent
from approvals
where tenant = :tenant and (created_at, id) > (:created_at, :id)
    and (:state is null or state = :state)
order by created_at, id
limit :limit;

-- Read who said what about an approval, the oldest first.
-- name: read_votes
select who, verdict, fingerprint, reason, via, at
from votes
where tenant = :tenant and approval = :id
order by number;
