"""The embedded PostgreSQL starts, keeps its promises, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from tests.testing.leaving import gone

from outlast.testing.servers import EmbeddedPostgres, ServerError, Shutdown

ORPHAN = """
import sys, time
from outlast.testing.servers import EmbeddedPostgres
server = EmbeddedPostgres(durable=False)
print(server._folder, server._data, flush=True)
time.sleep(600)
"""


def test_databases_are_separate_and_copies_hold_their_template(postgres_server: EmbeddedPostgres) -> None:
    postgres_server.create_database("origin")
    postgres_server.sql("create table fact (n int); insert into fact values (7)", database="origin")
    postgres_server.create_database("copy", template="origin")
    assert postgres_server.sql("select n from fact", database="copy") == "7"
    postgres_server.drop_database("origin")
    postgres_server.drop_database("copy")
    with pytest.raises(ServerError, match="does not exist"):
        postgres_server.sql("select 1", database="copy")


def test_a_durable_server_keeps_commits_across_a_crash() -> None:
    with EmbeddedPostgres() as server:
        assert server.sql("select current_setting('fsync'), current_setting('synchronous_commit')") == "on|on"
        server.sql("create table fact (n int); insert into fact values (7)")
        url = server.url
        server.crash()
        with pytest.raises(ServerError):
            server.sql("select 1")
        server.recover()
        assert server.url == url
        assert server.sql("select n from fact") == "7"


@pytest.mark.parametrize("how", get_args(Shutdown))
def test_a_server_comes_back_whichever_way_it_went_down(how: Shutdown) -> None:
    with EmbeddedPostgres() as server:
        server.sql("create table fact (n int)")
        for number in range(3):
            server.sql(f"insert into fact values ({number})")
            server.crash(how)
            with pytest.raises(ServerError):
                server.sql("select 1")
            server.recover()
            assert server.sql("select count(*) from fact") == str(number + 1)


def test_a_standby_follows_and_can_be_promoted() -> None:
    with EmbeddedPostgres() as first, EmbeddedPostgres(follows=first) as second:
        first.sql("create table fact (n int)")
        # A standby applies what it holds when it likes, so that it is asked after its promotion.
        first.sql("insert into fact values (7)")
        assert second.sql("select pg_is_in_recovery()") == "t"
        first.crash("kill")
        second.promote()
        assert second.sql("select n from fact") == "7"
        second.sql("insert into fact values (8)")


def test_stop_removes_everything_and_can_be_repeated() -> None:
    server = EmbeddedPostgres(durable=False, settings={"work_mem": "5MB"})
    assert server.sql("show work_mem") == "5MB"
    assert server.sql("show max_connections") == "200"
    server.stop()
    server.stop()
    assert not server._folder.exists()
    assert not server._data.exists()
    with pytest.raises(ServerError):
        server.sql("select 1")


def test_a_server_that_cannot_start_says_why_and_leaves_nothing() -> None:
    with pytest.raises(ServerError, match="shared_buffers"):
        EmbeddedPostgres(settings={"shared_buffers": "a lot"})


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_with_the_process_that_made_it(ending: signal.Signals) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert maker.stdout is not None
    folder, data = map(Path, maker.stdout.readline().decode().split())
    assert (data / "postmaster.pid").exists()
    maker.send_signal(ending)
    maker.wait()
    maker.stdout.close()
    assert gone(folder)
    assert not data.exists()


def test_a_fresh_database_is_empty(bare_postgres_url: str, postgres_server: EmbeddedPostgres) -> None:
    name = bare_postgres_url.rpartition("/")[2]
    tables = "select count(*) from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
    assert postgres_server.sql(tables, database=name) == "0"
