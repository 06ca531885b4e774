"""A server on small disks of its own: they can be full, nobody else has less, and nothing is left of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.testing.leaving import gone

from outlast.testing import cramped, small_disks
from outlast.testing.cramped import CrampedPostgres
from outlast.testing.servers import ServerError
from outlast.testing.small_disks import why_not

GROW = "insert into fact select n, repeat('x', 900) from generate_series(1, 2000) n"


@pytest.fixture(scope="module")
def server() -> Iterator[CrampedPostgres]:
    if why := why_not():
        pytest.skip(why)
    with CrampedPostgres() as made:
        made.sql("create table fact (n int, text text)")
        yield made


def test_a_statement_that_needs_room_is_refused_and_others_are_not(server: CrampedPostgres) -> None:
    free = shutil.disk_usage(server._folder).free
    server.fill("data")
    with pytest.raises(ServerError, match="could not extend file"):
        server.sql(GROW)
    assert server.sql("select 1") == "1"
    # Nobody else has less for it.
    assert abs(shutil.disk_usage(server._folder).free - free) < 100 << 20
    server.empty()
    server.sql(GROW)


def test_a_server_whose_log_has_no_room_stays_down_until_there_is(server: CrampedPostgres) -> None:
    before = server.sql("select count(*) from fact")
    server.fill("log")
    with suppress(ServerError):
        while True:
            server.sql("select pg_switch_wal()")
            server.sql("insert into fact values (0, '')")
    # Its restart has failed; that it then stops is PostgreSQL's own to do, and now and then it hangs instead.
    deadline = time.monotonic() + 20
    while not re.search(r"PANIC:(?s:.*)FATAL: +could not write to file", server.log):
        assert time.monotonic() < deadline, server.log[-2000:]
        time.sleep(0.02)
    with pytest.raises(ServerError):
        server.sql("select 1")
    server.empty()
    assert int(server.sql("select count(*) from fact")) >= int(before)
    server.crash("kill")
    server.recover()
    server.sql(GROW)


def test_a_server_that_hangs_although_it_has_room_is_started_again(
    server: CrampedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql, recover, recovered = server.sql, server.recover, []

    def hangs(statement: str, *, database: str = "postgres") -> str:
        if not recovered:
            raise ServerError("the database system is not yet accepting connections")
        return sql(statement, database=database)

    def recovers() -> None:
        recover()
        recovered.append(True)

    monkeypatch.setattr(cramped, "HANGS_AFTER_S", 0.2)
    monkeypatch.setattr(server, "sql", hangs)
    monkeypatch.setattr(server, "recover", recovers)
    server.empty()
    assert recovered == [True]
    monkeypatch.undo()
    assert server.sql("select 1") == "1"


def test_a_standby_has_disks_of_its_own(server: CrampedPostgres) -> None:
    with CrampedPostgres(follows=server) as standby:
        server.fill("data")
        server.empty()
        server.sql("insert into fact values (-7, '')")
        standby.promote()
        server.fill("data")
        standby.sql(GROW)
        assert standby.sql("select count(*) from fact where n = -7") == "1"
        server.empty()


ORPHAN = """
import time
from outlast.testing.cramped import CrampedPostgres
server = CrampedPostgres()
print(server._folder, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_when_its_maker_is_killed(server: CrampedPostgres) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        folder = maker.stdout.readline().strip()
        maker.kill()
    assert gone(Path(folder))
    assert folder not in Path("/proc/self/mounts").read_text()


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := why_not():
        pytest.skip(why)
    monkeypatch.setattr(CrampedPostgres, "_home", Path("/nowhere"))
    with pytest.raises(ServerError, match='could not access directory "/nowhere"'):
        CrampedPostgres()


def test_a_system_without_them_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "script.py"
    text = Path(small_disks.__file__).read_text()
    call = "    if getattr(ctypes.CDLL"
    refused = "    raise OSError(1, f'{name}: Operation not permitted')\n"
    assert text.count(call) == 1
    refusing.write_text(text.replace(call, f"{refused}{call}"))
    monkeypatch.setattr(small_disks, "__file__", str(refusing))
    assert why_not() == "no file system of one's own can be had: unshare: Operation not permitted"
    monkeypatch.setattr(sys, "platform", "plan9")
    assert why_not() == "plan9 has no mount namespaces"
