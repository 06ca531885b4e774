"""Where functions can be halted."""

from __future__ import annotations

import re

from tests.explorer.stops import behind, statements, told, with_stops

BODY = """
#variable_conflict use_column
declare
    v_one record; -- begin; nothing
begin
    perform from outlast.tasks t where t.id = 'a;b' for update;
    v_now := clock();
    for v_one in
        select case when t.id = '' then 1 else 2 end as kind from outlast.tasks t
    loop
        if v_one.kind = 1 and case when v_now > 2 then true else false end then
            begin
                update outlast.tasks t set state = 'x';
            exception when lock_not_available or deadlock_detected then
                null;
            end;
        elsif found then
            continue;
        else
            return query select 1;
        end if;
    end loop;
    if not found and not exists (select from outlast.leases) then
        return;
    end if;
end
"""
TOUCHES = re.compile(r"\boutlast\.(?:tasks|leases)\b")


def test_statements_are_told_apart() -> None:
    found = [BODY[one.start : one.end].split()[0] for one in statements(BODY)]
    assert found == ["perform", "v_now", "for", "if", "update", "null", "continue", "return", "if", "return"]


def test_stops_stand_before_what_others_can_see_and_before_the_end() -> None:
    made = with_stops("it", BODY, TOUCHES, last=True)
    places = re.findall(r"explorer\.stop\('(it \d+)'\); (\w+)", made)
    assert places == [
        ("it 1", "perform"),
        ("it 2", "for"),
        ("it 3", "update"),
        ("it 4", "if"),
        ("it 5", "return"),
        ("it 6", "end"),
    ]
    assert re.sub(r"halted_at (?::= explorer\.stop\('it \d+'\)|text); ?", "", made).split() == BODY.split()
    assert told(made)[2] == "update outlast.tasks t set state = 'x'"
    assert "v_now := clock();" in behind(made, 1)


def test_a_function_without_declarations_gets_one() -> None:
    made = with_stops("it", "\nbegin\n    perform from outlast.tasks;\nend\n", TOUCHES, last=False)
    assert " ".join(made.split()) == (
        "declare halted_at text; begin halted_at := explorer.stop('it 1'); perform from outlast.tasks; end"
    )
