-- put_rule, withdraw_rule, read_rules, list_rules: standing rules of tools.
--
-- Lock order: the file's one writer lock; the views take none.

-- Take the next number of a change of any rule.
-- name: next_change
update sequences
set value = value + 1
where name = 'rules'
returning value;

-- Let a rule stand.
-- name: keep_rule
insert into rules (tenant, number, tool, verdict, bounds, by_whom, reason, at, changed)
values (:tenant, :number, :tool, :verdict, :bounds, :by, :reason, :at, :changed);

-- Read a rule that stands.
-- name: read_rule
select tool, verdict, bounds
from rules
where tenant = :tenant and number = :number and withdrawn_at is null;

-- Take a rule back.
-- name: withdraw_rule
update rules
set withdrawn_at = :now, changed = :changed
where tenant = :tenant and number = :number and withdrawn_at is null;

-- Say whether there has ever been a rule.
-- name: any_rules
select 1
from rules
limit 1;

-- Say whether a rule stands for a tool.
-- name: any_rule
select 1
from rules
where tenant = :tenant and tool = :tool and withdrawn_at is null
limit 1;

-- Read the number of the last change of a tool's rules.
-- name: read_rules_version
select max(changed)
from rules
where tenant = :tenant and tool = :tool;

-- Read the rules that stand for a tool.
-- name: read_rules
select number, tool, verdict, bounds, by_whom, reason, at
from rules
where tenant = :tenant and tool = :tool and withdrawn_at is null
order by number;

-- List the rules that stand in a tenant.
-- name: list_rules
select number, tool, verdict, bounds, by_whom, reason, at
from rules
where tenant = :tenant and withdrawn_at is null
order by tool, number;
