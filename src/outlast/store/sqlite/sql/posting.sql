-- post, news, deliver, read_inbox: facts that reach a task from outside.
--
-- Lock order: the file's one writer lock; the views take none. What is fenced: nothing; a fact needs no lease.

-- Find a signal by its key.
-- name: read_signal
select number, digest
from inbox
where tenant = :tenant and task = :task and name = :name and key = :key;

-- Read the wait that a signal answers, where that has ended or its time has.
-- name: read_over
select state
from operations
where tenant = :tenant and task = :task and key = :key and (state in ('succeeded', 'failed') or due_at < :now);

-- Count the signals that lie before a task, up to a bound.
-- name: count_inbox
select count(*)
from (
    select 1
    from inbox
    where tenant = :tenant and task = :task and taken_by is null and kind = 'signal'
    limit :limit
);

-- Put a signal or a child's end before a task.
-- name: keep_inbox
insert into inbox (tenant, task, number, kind, name, key, digest, data, at)
values (:tenant, :task, :number, :kind, :name, :key, :digest, :data, :at);

-- Take what lies before a task; what was taken stays taken.
-- name: take_inbox
update inbox
set taken_by = :key
where tenant = :tenant and task = :task and number = :number and taken_by is null;

-- Take the end of a child that is on its way to its parent.
-- name: take_post
delete from posts
where seq = (
    select seq
    from posts
    where tenant = :tenant and task = :task and name = :key and kind = 'child'
    order by seq
    limit 1);

-- Take the end of a child where it lies before its parent already.
-- name: take_end
update inbox
set taken_by = :key
where tenant = :tenant and task = :task and taken_by is null and kind = 'child' and name = :name;

-- Say whether an operation has ended.
-- name: has_ended
select 1
from operations
where tenant = :tenant and task = :task and key = :key and state in ('succeeded', 'failed');

-- Read what lies before a task above a number and was not taken, the oldest first.
-- name: read_inbox
select number, kind, name, data, at
from inbox
where tenant = :tenant and task = :task and number > :after and taken_by is null
order by number;

-- Forget the news that a worker has heard.
-- name: clear_news
update leases
set news = 0
where session = :session and tenant = :tenant and task = :task and news between 1 and :facts;

-- Read the running tasks of a session for which there is news.
-- name: read_news
select leases.tenant, leases.task, leases.news, tasks.cancelling, tasks.undoing
from leases
join tasks on tasks.tenant = leases.tenant and tasks.id = leases.task
where leases.session = :session and leases.news > 0
order by leases.tenant, leases.task;

-- Read what is to be delivered, the oldest first.
-- name: read_posts
select seq, tenant, task, kind, name, data
from posts
order by seq
limit :limit;

-- Forget what was delivered.
-- name: drop_post
delete from posts
where tenant = :tenant and seq = :seq;
