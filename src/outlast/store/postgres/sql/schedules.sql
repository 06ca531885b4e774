-- The calls of the verbs of schedules, and their views. Lock order and fencing are stated at the top of the functions'
-- file under migrations; the views take no locks.

-- Make a schedule, or put another in its place.
-- name: put_schedule
select kind, revision
  from outlast.put_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19);

-- Pause a schedule, let it go on, or delete it.
-- name: set_schedule
select kind, revision
  from outlast.set_schedule($1, $2, $3, $4, $5, $6, $7, $8);

-- Take schedules that are due; the first row holds the clock and the next due instant only.
-- name: due_schedules
select now, next_due_at, tenant, id
  from outlast.due_schedules($1, $2, $3);

-- Read schedules that were taken and are due still, in the order of their names as given.
-- name: load_schedules
select s.tenant, s.id, s.revision, s.agent, s.version_asked, s.pool, s.priority, s.input, s.user_name, s.deadline_us,
       s.timing, s.missed, s.max_missed, s.overlap, s.jitter_us, s.paused, s.paused_by, s.next_at, s.last_at,
       s.last_task, s.fired, s.skipped, s.note, s.noted_at, s.created_at, s.changed_at, s.changed_by
  from unnest($1::text[], $2::text[]) with ordinality as d (tenant, id, item)
  join outlast.schedules s on s.tenant = d.tenant and s.id = d.id
 where s.paused is null and s.next_at <= $3
 order by d.item;

-- Fire schedules, each for one instant.
-- name: fire_schedules
select item, kind, task
  from outlast.fire_schedules($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
       $20, $21, $22, $23);

-- Read a schedule by its id.
-- name: read_schedule
select s.tenant, s.id, s.revision, s.agent, s.version_asked, s.pool, s.priority, s.input, s.user_name, s.deadline_us,
       s.timing, s.missed, s.max_missed, s.overlap, s.jitter_us, s.paused, s.paused_by, s.next_at, s.last_at,
       s.last_task, s.fired, s.skipped, s.note, s.noted_at, s.created_at, s.changed_at, s.changed_by
  from outlast.schedules s
 where s.tenant = $1 and s.id = $2;

-- List a tenant's schedules by id.
-- name: list_schedules
select s.tenant, s.id, s.revision, s.agent, s.version_asked, s.pool, s.priority, s.input, s.user_name, s.deadline_us,
       s.timing, s.missed, s.max_missed, s.overlap, s.jitter_us, s.paused, s.paused_by, s.next_at, s.last_at,
       s.last_task, s.fired, s.skipped, s.note, s.noted_at, s.created_at, s.changed_at, s.changed_by
  from outlast.schedules s
 where s.tenant = $1 and s.id > $2
 order by s.id
 limit $3;
