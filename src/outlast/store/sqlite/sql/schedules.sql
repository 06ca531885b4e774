-- put_schedule, set_schedule, due_schedules, fire_schedules, read_schedule, list_schedules.
--
-- Lock order: the file's one writer lock; the views take none. What is fenced: a schedule by its revision, a firing by
-- (revision, next_at) as well.

-- Read a schedule by its id.
-- name: read_schedule
select tenant, id, agent, timing, version_asked, pool, priority, input, user_name, deadline_us, missed, max_missed,
    overlap, jitter_us, revision, paused, paused_by, next_at, last_at, last_task, fired, skipped, note, noted_at,
    created_at, changed_at, changed_by
from schedules
where tenant = :tenant and id = :id;

-- List a tenant's schedules by id.
-- name: list_schedules
select tenant, id, agent, timing, version_asked, pool, priority, input, user_name, deadline_us, missed, max_missed,
    overlap, jitter_us, revision, paused, paused_by, next_at, last_at, last_task, fired, skipped, note, noted_at,
    created_at, changed_at, changed_by
from schedules
where tenant = :tenant and id > :after
order by id
limit :limit;

-- Make a schedule.
-- name: make_schedule
insert into schedules (tenant, id, revision, agent, version_asked, pool, priority, input, user_name, deadline_us,
    timing, missed, max_missed, overlap, jitter_us, next_at, created_at, changed_at, changed_by)
values (:tenant, :id, 1, :agent, :version, :pool, :priority, :input, :user, :deadline_us, :timing, :missed,
    :max_missed, :overlap, :jitter_us, :next_at, :now, :now, :by);

-- Put another schedule in the place of one; what is next stands where the times do.
-- name: replace_schedule
update schedules
set revision = revision + 1, agent = :agent, version_asked = :version, pool = :pool, priority = :priority,
    input = :input, user_name = :user, deadline_us = :deadline_us,
    next_at = case when timing = :timing then next_at else :next_at end, timing = :timing, missed = :missed,
    max_missed = :max_missed, overlap = :overlap, jitter_us = :jitter_us, taken_until = 0, changed_at = :now,
    changed_by = :by
where tenant = :tenant and id = :id and revision = :revision;

-- Pause a schedule.
-- name: pause_schedule
update schedules
set revision = revision + 1, paused = :reason, paused_by = :by, changed_at = :now, changed_by = :by
where tenant = :tenant and id = :id and revision = :revision;

-- Let a schedule go on.
-- name: resume_schedule
update schedules
set revision = revision + 1, paused = null, paused_by = null, next_at = :next_at, taken_until = 0, changed_at = :now,
    changed_by = :by
where tenant = :tenant and id = :id and revision = :revision;

-- Delete a schedule.
-- name: delete_schedule
delete from schedules
where tenant = :tenant and id = :id and revision = :revision;

-- Read schedules that are due and that nobody else has just taken, the one due longest first.
-- name: schedules_due
select tenant, id, agent, timing, version_asked, pool, priority, input, user_name, deadline_us, missed, max_missed,
    overlap, jitter_us, revision, paused, paused_by, next_at, last_at, last_task, fired, skipped, note, noted_at,
    created_at, changed_at, changed_by
from schedules
where paused is null and next_at is not null and next_at <= :now and taken_until <= :now
order by next_at, tenant, id
limit :limit;

-- Read when the next schedule is due.
-- name: next_schedule
select min(next_at)
from schedules
where paused is null and next_at is not null and next_at > :now;

-- Keep until when a schedule is taken.
-- name: take_schedule
update schedules
set taken_until = :until
where tenant = :tenant and id = :id;

-- Say whether a task lives.
-- name: is_live
select 1
from tasks
where tenant = :tenant and id = :task and state in ('queued', 'running', 'waiting');

-- Say whether a task was submitted.
-- name: is_submitted
select 1
from tasks
where tenant = :tenant and id = :task;

-- Move a schedule on.
-- name: move_schedule
update schedules
set next_at = :next_at, taken_until = case when :next_at = :expected then taken_until else 0 end,
    last_at = coalesce(:last_at, last_at), last_task = coalesce(:last_task, last_task), fired = fired + :fired,
    skipped = skipped + :skipped, note = coalesce(:note, note),
    noted_at = case when :note is null then noted_at else :now end
where tenant = :tenant and id = :id and revision = :revision and next_at = :expected;
