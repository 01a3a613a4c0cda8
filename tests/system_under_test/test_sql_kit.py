"""The SQL kit over SQLite and DuckDB: every path finds the same rows, and an error proves what it can."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from system_under_test.client import Address, Placement
from system_under_test.sql import FIND, PUT, NothingHappened, RemoteError, SqlClient


class Client(SqlClient):
    begin = "begin immediate"


@contextmanager
def served(driver: str, given: dict[str, object]) -> Iterator[Address]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "system_under_test.sql", "127.0.0.1", str(port), driver, json.dumps(given)]
    with subprocess.Popen(words) as process:
        for _ in range(2000):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield Address("n1", "127.0.0.1", port)
        process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Address]:
    given = {"database": str(tmp_path / "held.db"), "isolation_level": None, "timeout": 0.05}
    with served("sqlite3", given) as address:
        yield address


@pytest.fixture
def duckdb(tmp_path: Path) -> Iterator[Address]:
    with served("duckdb", {"database": str(tmp_path / "held.duckdb")}) as address:
        yield address


def opened(server: Address, thread: int = 0, kind: type[SqlClient] = Client) -> SqlClient:
    client = kind(Placement(thread, "c1", True, False), {"n1": server})
    client.connection = client.open(server)
    client.create()
    return client


def test_what_one_way_writes_every_path_finds(server: Address) -> None:
    clients = [opened(server, thread) for thread in range(len(FIND) * len(PUT))]
    for value, (writer, key) in enumerate(product(clients, ("k0", "k1"))):
        writer.write(key, value)
        assert {reader.read(key) for reader in clients[: len(FIND)]} == {value}
    lists = [["append", "l", n] for n in range(len(clients))]
    for client, step in zip(clients, lists, strict=True):
        client.transact_lists([step, ["r", "l", None]])
    assert clients[0].transact_lists([["r", "l", None]]) == [["r", "l", list(range(len(clients)))]]
    assert clients[1].transact_registers([["w", "r", 5], ["r", "r", None]])[1] == ["r", "r", 5]
    assert clients[2].cas("r", 5, 6) and not clients[3].cas("r", 5, 7)


def test_money_moves_or_stays(server: Address) -> None:
    client = opened(server)
    for account in ("a0", "a1", "a0"):
        client.open_account(account, 10)
    assert client.transfer("a0", "a1", 4) and not client.transfer("a0", "a1", 7)
    assert client.balances() == {"a0": 6, "a1": 14}


def test_an_error_before_commit_proves_that_nothing_happened(server: Address) -> None:
    one, other = opened(server), opened(server, 1)
    one._rows("begin immediate")
    with pytest.raises(NothingHappened, match="database is locked"):
        other.write("k", 1)


def test_an_error_of_commit_proves_nothing_unless_the_table_names_it(server: Address) -> None:
    class Broken(Client):
        def _rows(self, statement, *parameters):
            if statement == "commit":
                raise RemoteError("40001 serialization failure")
            return super()._rows(statement, *parameters)

    class Told(Broken):
        nothing_happened = ("40001",)

    with pytest.raises(RemoteError):
        opened(server, 0, Broken).write("k", 1)
    with pytest.raises(NothingHappened):
        opened(server, 0, Told).write("k", 1)


def test_a_transaction_reaches_a_library_whose_cursors_are_sessions(duckdb: Address) -> None:
    client, other = opened(duckdb, 0, SqlClient), opened(duckdb, 1, SqlClient)
    client.write("k", 1)
    client._rows("begin")
    client._put("k", 2)
    assert other.read("k") == 1
    client._rows("commit")
    assert other.read("k") == 2
