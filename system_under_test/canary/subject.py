"""The canary as a subject: nothing to install, start or collect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from system_under_test.canary.objects import INVENT_ODDS, LOCK_ODDS, ODDS, Objects
from system_under_test.functions import FUNCTIONS
from system_under_test.subject import Bug, Complaint, Declares, Node, NodeStatus, Subject

_ODDS = {"invent": INVENT_ODDS, "same-token": LOCK_ODDS, "two-leases": LOCK_ODDS, "two-holders": LOCK_ODDS}
"""One in so many answers is wrong, where it is not one in ODDS."""


def _bug(name: str, summary: str, found_by: str, kinds: tuple[str, ...], workloads: tuple[str, ...]) -> Bug:
    odds = _ODDS.get(name, ODDS)
    share = f"about one in {odds}" if odds > 1 else "each one of the"
    return Bug(name, f"{share} {summary}", found_by, kinds, workloads=workloads)


_REGISTERS = ("register", "repeated-register", "cas-register")
_BUGS = (
    _bug(
        "stale",
        "reads is answered with the value before the last one",
        "linearizability",
        ("stale read", "order cycle"),
        _REGISTERS,
    ),
    _bug(
        "lose",
        "writes is acknowledged and never made",
        "linearizability",
        ("lost write", "stale read", "order cycle"),
        _REGISTERS,
    ),
    _bug(
        "invent",
        "reads shows a value that nobody wrote",
        "convergence",
        ("a value that nobody wrote",),
        ("convergence", "set-convergence"),
    ),
    _bug("cas-anyway", "compare-and-sets matches anything", "linearizability", (), ("cas-register",)),
    _bug("lose-element", "adds is acknowledged and never made", "set", (), ("set", "large-set")),
    _bug("lose-amount", "increments is acknowledged and never made", "counter", (), ("counter",)),
    _bug("same-id", "ids was given before", "unique-ids", (), ("unique-ids",)),
    _bug("lose-value", "enqueues is acknowledged and never made", "queue", (), ("queue",)),
    _bug("lose-entry", "appends is acknowledged and never made", "append-log", (), ("append-log",)),
    _bug("lose-text", "appends to strings is acknowledged and never made", "kv", (), ("kv",)),
    _bug("same-token", "acquires is given the token of the one before", "fenced-lock", (), ("fenced-lock",)),
    _bug("lose-transfer", "transfers never reaches its target", "bank", (), ("bank",)),
    _bug("long-fork", "reads in transactions misses a write", "long-fork", (), ("long-fork",)),
    _bug("two-leases", "acquires of a lock whose lease is valid is granted", "leased-lock", (), ("leased-lock",)),
    _bug("two-holders", "acquires of a lock that is held is granted", "mutex", (), ("lock",)),
    _bug("lost-update", "appends overwrites the one before it", "list-append", (), ("list-append",)),
    _bug(
        "stale-transaction",
        "reads in transactions is answered with the value before the last one",
        "rw-register",
        (),
        ("rw-register",),
    ),
)


class Canary(Subject):
    name = "canary"
    summary = "objects of every kind in the harness' own process: its test of itself"
    client_module = "system_under_test.canary.client"
    port = 0
    declares = Declares(nodes=False, logs=False, traces=False, elections=False, faults=False, leaders=False)
    bugs: Mapping[str, Bug] = {bug.name: bug for bug in _BUGS}
    keeps_to_one_server = True  # it has only one
    functions = frozenset(name for name in FUNCTIONS if hasattr(Objects, name))

    async def install(self, nodes: Sequence[Node], *, seed: int, bug: str | None) -> None:
        return None

    async def start(self, node: Node) -> None:
        return None

    async def status(self, node: Node) -> NodeStatus | None:
        return None

    async def caught_up(self, nodes: Sequence[Node], key_count: int) -> str | None:
        return None

    def client_config(self, *, seed: int, bug: str | None) -> dict[str, Any]:
        return {"run": uuid4().hex, "seed": seed, "bug": bug}

    async def collect(self, node: Node, folder: Path) -> None:
        return None

    def complaints(self, run_folder: Path) -> Sequence[Complaint]:
        return ()
