"""Serves a database that is a library of Python: a DB-API connection for each client, a statement a line.

    python -m system_under_test.sql_server HOST PORT DRIVER '{"database": "held.db"}'

A line is [statement, parameters] as JSON; the answer is [error or null, whether there are rows, rows].  A connection of
the library ends with that of its client, and with it a transaction that is open.
"""

from __future__ import annotations

import importlib
import json
import socketserver
import sys
from typing import Any


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        driver, given = self.server.library  # type: ignore[attr-defined]
        connection = driver.connect(**given)
        cursor = connection.cursor()  # one for all: a cursor of DuckDB is a session, with transactions of its own
        try:
            for line in self.rfile:
                self.wfile.write(json.dumps(_answer(cursor, *json.loads(line)), default=str).encode() + b"\n")
        finally:
            connection.close()


def _answer(cursor: Any, statement: str, parameters: list[Any]) -> list[Any]:
    try:
        cursor.execute(statement, parameters)
        return [None, bool(cursor.description), [list(row) for row in cursor.fetchall()] if cursor.description else []]
    except Exception as problem:  # noqa: BLE001 - whatever a library raises is its answer
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
