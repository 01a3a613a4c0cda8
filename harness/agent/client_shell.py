"""A shell that sends requests to the servers like a client of the workload, for users on a client node.

    python3 -m harness.agent.client_shell FILE
    > write k0 17
    ok  n2
    > read k0
    ok 17  n2

FILE is JSON: {"module", "peers", "config", "node", "keys"}, with the values for which the run's clients were opened.  A
line is a function, a key, and at most two integers or a JSON list or object.  The requests are not part of the history.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checkers.base.history import Type
from harness.agent.hosted_clients import HostedClients
from system_under_test.client import Placement

THREAD = 0
LIMIT_S = 5.0
FINDING_S = 2.0
"""Seconds before the first line is read, in which the client finds a leader."""
KEYS_SHOWN = 10


class BadLine(ValueError):
    """A line that cannot be parsed; the message says why."""


def request_of(line: str) -> dict[str, Any]:
    """Parse a line into fields of a `Request`.  Raises BadLine."""
    head, mark, payload = line.partition(" [") if " [" in line else line.partition(" {")
    function, *rest = head.split()
    request: dict[str, Any] = {"f": function}
    if mark:
        request["payload"] = mark[1] + payload
        try:
            json.loads(request["payload"])
        except ValueError as problem:
            raise BadLine(f"{request['payload']} is not valid JSON: {problem}") from None
    if rest:
        request["key"] = rest[0]
    try:
        names = ("value", "value2")[: max(0, len(rest) - 1)]
        request |= dict(zip(names, map(int, rest[1:]), strict=True))
    except ValueError:
        raise BadLine("after the key come at most two whole numbers, or JSON") from None
    return request


def words_of(outcome: Mapping[str, Any]) -> str:
    """Return the outcome of a request in one line."""
    shown = [str(outcome[name]) for name in ("value", "value2", "payload", "error") if outcome.get(name) is not None]
    return "  ".join(
        filter(None, (" ".join([Type(outcome["type"]).name.lower(), *shown]), str(outcome.get("node", ""))))
    )


async def shell(given: Mapping[str, Any]) -> None:
    """Read lines from stdin until its end, send each as a request, and print its outcome."""
    clients = HostedClients(lambda words: print(words, file=sys.stderr))
    placement = Placement(THREAD, given["node"], follows=True, reads_only=False)
    await clients.open(given["module"], [asdict(placement)], given["peers"], given["config"])
    functions = given["config"].get("functions") or {}
    print(f"servers: {', '.join(f'{name} {address}' for name, address in given['peers'].items())}")
    print(f"FUNCTION [KEY] [NUMBER [NUMBER]] [JSON]; functions: {', '.join(functions) or 'those of the client'}")
    print(f"keys: {', '.join(given['keys'][:KEYS_SHOWN])}")
    await asyncio.sleep(FINDING_S)
    try:
        while line := await asyncio.to_thread(_read):
            if not line.strip():
                continue
            try:
                print(words_of(await clients.invoke(THREAD, request_of(line), LIMIT_S)), flush=True)
            except BadLine as problem:
                print(problem, flush=True)
    finally:
        await clients.close()


def _read() -> str:
    if sys.stdin.isatty():
        print("> ", end="", flush=True)
    return sys.stdin.readline()


if __name__ == "__main__":
    asyncio.run(shell(json.loads(Path(sys.argv[1]).read_text())))
