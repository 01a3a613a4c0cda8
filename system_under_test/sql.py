"""A client for SQL databases with any DB-API driver: lists, registers and accounts as rows of small tables.

    class PostgreSQL(System): ...                       # how it is started

    class Transactions(SqlClient):
        parameter = "%s"
        nothing_happened = (r"^40001 ", r"^40P01 ")     # a table of errors

        def connect(self, server):
            return psycopg.connect(host=server.host, autocommit=True)

is a client for `list-append`, `rw-register`, `bank`, `register` and `cas-register`.  A database that is a library has
no server: `SqlSystem` (below) starts a server around the library, and the client needs no `connect`.

* **Paths.**  A bug may affect a single query plan.  So each process finds rows in its own way: by the primary key, by a
  secondary index, through a join, or by a key from another table.  `paths` selects the ways in use.
* **Writes.**  A row is written in three ways: by `on conflict do update`, by an update or else an insert, or by a
delete and an insert.  `ways` selects the ways in use.
* **What an error proves.**  A transaction whose COMMIT was not sent did not happen, whatever the error; if its effect
  is seen all the same, the checkers report an aborted read.  After COMMIT was sent an error proves nothing, unless it
  matches a pattern of `nothing_happened`.  Patterns are searched for in "SQLSTATE Class: text"; SQLSTATE is empty if
  the driver has none.

*Server.*  The server of a `SqlSystem` opens a connection of the library for each client, and executes one statement per
line.

    python -m system_under_test.sql HOST PORT DRIVER '{"database": "held.db"}'

A line is [statement, parameters] as JSON; the answer is [error or null, true if there are rows, rows].  When a client
disconnects, its connection of the library is closed, and an open transaction ends.

This module runs on nodes and needs only the standard library.
"""

from __future__ import annotations

import importlib
import json
import re
import socket
import socketserver
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from system_under_test.client import Address, Client
from system_under_test.system import Command, OwnNode, System

T = TypeVar("T")
Steps = Sequence[Sequence[Any]]

TABLES = (
    "create table if not exists krucible_kept (k varchar(40) primary key, s varchar(40), v text)",
    "create table if not exists krucible_names (n varchar(40) primary key, k varchar(40))",
    "create table if not exists krucible_accounts (k varchar(40) primary key, v bigint)",
)
INDEX = "create index if not exists krucible_second on krucible_kept (s)"
FIND: Mapping[str, str] = {
    "key": "select v from krucible_kept where k = ?",
    "index": "select v from krucible_kept where s = ?",
    "join": "select h.v from krucible_names n join krucible_kept h on h.k = n.k where n.n = ?",
    "indirect": "select v from krucible_kept where k = (select k from krucible_names where n = ?)",
}
"""Path -> the query that finds a row."""
PUT: Mapping[str, tuple[str, ...]] = {
    "upsert": ("insert into krucible_kept (v, k, s) values (?, ?, ?) on conflict (k) do update set v = excluded.v",),
    "replace": (
        "delete from krucible_kept where k = ?",
        "insert into krucible_kept (v, k, s) values (?, ?, ?)",
    ),
    "update": (
        "update krucible_kept set v = ? where k = ?",
        "insert into krucible_kept (v, k, s) select ?, ?, ? where not exists (select 1 from krucible_kept where k = ?)",
    ),
}
"""Way of writing -> its statements.  The parameters of a statement are some of value, key and second key, in this
order.
"""


class NothingHappened(Exception):
    """The transaction certainly had no effect."""


class SqlClient(Client):
    """A client of a SQL database.

    parameter: placeholder of a parameter in statements of the driver
    begin: statement that begins a transaction
    paths, ways: names in FIND and PUT that are used
    nothing_happened: regular expressions of errors that prove that a transaction had no effect although its COMMIT was
        sent
    """

    refused = (NothingHappened,)
    parameter: ClassVar[str] = "?"
    begin: ClassVar[str] = "begin"
    paths: ClassVar[Sequence[str]] = tuple(FIND)
    ways: ClassVar[Sequence[str]] = tuple(PUT)
    nothing_happened: ClassVar[Sequence[str]] = ()

    def connect(self, server: Address) -> Any:
        """Return a connection of the driver.  It must commit each statement outside a transaction."""
        return Remote(server)

    def open(self, server: Address) -> Any:
        connection = self.connect(server)
        # one for all operations: a cursor of DuckDB is a session with its own transactions
        self._cursor = connection.cursor()
        return connection

    # ---- one statement, one transaction ------------------------------------------------------------------------

    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        self._cursor.execute(statement.replace("?", self.parameter), parameters)
        return list(self._cursor.fetchall()) if self._cursor.description else []

    def _transaction(self, work: Callable[[], T]) -> T:
        """Execute `work` in a transaction.  Raises NothingHappened if the error proves that the transaction had no
        effect, else the driver's exception.
        """
        sent = False
        try:
            self._rows(self.begin)
            found = work()
            sent, self.harmless = True, False
            self._rows("commit")
        except Exception as problem:
            told = f"{getattr(problem, 'sqlstate', None) or ''} {type(problem).__name__}: {problem}"
            if not sent or any(re.search(pattern, told) for pattern in self.nothing_happened):
                raise NothingHappened(told) from problem
            raise
        return found

    def create(self, key: str | None = None) -> None:
        for statement in (*TABLES, INDEX):
            self._rows(statement)

    # ---- lists and registers -----------------------------------------------------------------------------------

    def _held(self, key: str) -> Any:
        path = self.paths[self.who.thread % len(self.paths)]
        found = self._rows(FIND[path], {"key": key, "index": f"s-{key}"}.get(path, f"n-{key}"))
        return json.loads(found[0][0]) if found else None

    def _put(self, key: str, value: Any) -> None:
        if not self._rows("select 1 from krucible_names where n = ?", f"n-{key}"):
            self._rows("insert into krucible_names (n, k) values (?, ?)", f"n-{key}", key)
        given = [json.dumps(value), key, f"s-{key}"]
        for statement in PUT[self.ways[self.who.thread // len(self.paths) % len(self.ways)]]:
            wanted = statement.count("?")
            self._rows(statement, *([key] if wanted == 1 else [*given, key][:wanted]))

    def _steps(self, steps: Steps, written: Callable[[Any, Any], Any]) -> list[list[Any]]:
        def work() -> list[list[Any]]:
            done: list[list[Any]] = []
            for f, key, value in steps:
                if f == "r":
                    done.append([f, key, self._held(key)])
                else:
                    self._put(key, written(key, value))
                    done.append([f, key, value])
            return done

        return self._transaction(work)

    def transact_lists(self, steps: Steps) -> list[list[Any]]:
        return self._steps(steps, lambda key, value: [*(self._held(key) or []), value])

    def transact_registers(self, steps: Steps) -> list[list[Any]]:
        return self._steps(steps, lambda key, value: value)

    def read(self, key: str) -> int | None:
        value: int | None = self._transaction(lambda: self._held(key))
        return value

    def write(self, key: str, value: int) -> None:
        self._transaction(lambda: self._put(key, value))

    def cas(self, key: str, expected: int | None, new: int) -> bool:
        def work() -> bool:
            if self._held(key) != expected:
                return False
            self._put(key, new)
            return True

        return self._transaction(work)

    # ---- accounts ----------------------------------------------------------------------------------------------

    def open_account(self, account: str, balance: int) -> None:
        self.create()

        def work() -> None:
            if not self._rows("select 1 from krucible_accounts where k = ?", account):
                self._rows("insert into krucible_accounts (k, v) values (?, ?)", account, balance)

        self._transaction(work)

    def transfer(self, source: str, target: str, amount: int) -> bool:
        def work() -> bool:
            ((balance,),) = self._rows("select v from krucible_accounts where k = ?", source)
            if balance < amount:
                return False
            self._rows("update krucible_accounts set v = v - ? where k = ?", amount, source)
            self._rows("update krucible_accounts set v = v + ? where k = ?", amount, target)
            return True

        return self._transaction(work)

    def balances(self) -> dict[str, int]:
        return {str(k): int(v) for k, v in self._transaction(lambda: self._rows("select k, v from krucible_accounts"))}


class SqlSystem(System):
    """A database that is a Python library, behind a small server that opens a connection for each client.

    driver: name of its DB-API module
    connect_with: keyword arguments of its `connect`
    """

    port = 8000
    elections = False
    driver: str = ""
    connect_with: ClassVar[Mapping[str, Any]] = {}

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command | Mapping[str, Command]:
        served = ["-m", "system_under_test.sql", node.address, str(self.port), self.driver]
        return [*node.python, *served, json.dumps(dict(self.connect_with))]


class RemoteError(Exception):
    """An error that the library behind a `SqlSystem` raised: class and text."""


class Remote:
    """A connection to the server of a `SqlSystem`.  It has the needed methods of a DB-API connection and of a
    cursor.
    """

    def __init__(self, server: Address) -> None:
        self._socket = socket.create_connection((server.host, server.port))
        self._lines = self._socket.makefile("rb")
        self.description: Any = None
        self._answer: list[Any] = []

    def cursor(self) -> Remote:
        return self

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._socket.sendall(json.dumps([statement, list(parameters)]).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise EOFError("the server closed the connection")
        problem, self.description, self._answer = json.loads(line)
        if problem:
            raise RemoteError(problem)

    def fetchall(self) -> list[Any]:
        return self._answer

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        driver, given = self.server.library  # type: ignore[attr-defined]
        connection = driver.connect(**given)
        # one for all operations: a cursor of DuckDB is a session with its own transactions
        cursor = connection.cursor()
        try:
            for line in self.rfile:
                self.wfile.write(json.dumps(_answer(cursor, *json.loads(line)), default=str).encode() + b"\n")
        finally:
            connection.close()


def _answer(cursor: Any, statement: str, parameters: list[Any]) -> list[Any]:
    try:
        cursor.execute(statement, parameters)
        return [None, bool(cursor.description), [list(row) for row in cursor.fetchall()] if cursor.description else []]
    except Exception as problem:  # noqa: BLE001 - every exception of a library is its answer
        return [f"{type(problem).__name__}: {problem}", False, []]


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 100


def main(host: str, port: str, driver: str, given: str) -> None:
    with _Server((host, int(port)), _Session) as server:
        server.library = importlib.import_module(driver), json.loads(given)  # type: ignore[attr-defined]
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
