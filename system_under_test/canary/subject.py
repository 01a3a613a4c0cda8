"""The canary as a subject: nothing to install, start or collect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from system_under_test.canary.objects import INVENT_ODDS, LOCK_ODDS, ODDS, Objects
from system_under_test.functions import FUNCTIONS
from system_under_test.subject import Bug, Collected, Complaint, Declares, Needs, Node, NodeStatus, StartedOn, Subject

_ODDS = {"invent": INVENT_ODDS, "same-token": LOCK_ODDS, "two-leases": LOCK_ODDS, "two-holders": LOCK_ODDS}
"""One in so many answers is wrong, where it is not one in ODDS."""


def _bug(
    name: str,
    summary: str,
    found_by: str,
    kinds: tuple[str, ...],
    function: str,
    workloads: tuple[str, ...],
) -> Bug:
    words = f"about one in {_ODDS.get(name, ODDS)} {summary}"
    return Bug(name, words, found_by, kinds, f"{Objects.__module__}:Objects.{function}", workloads=workloads)


_REGISTERS = ("register", "repeated-register", "cas-register")
_BUGS = (
    _bug(
        "stale",
        "reads is answered with the value before the last one",
        "linearizability",
        ("stale read", "order cycle"),
        "read",
        _REGISTERS,
    ),
    _bug(
        "lose",
        "writes is acknowledged and never made",
        "linearizability",
        ("lost write", "stale read", "order cycle"),
        "write",
        _REGISTERS,
    ),
    _bug(
        "invent",
        "reads shows a value that nobody wrote",
        "convergence",
        ("a value that nobody wrote",),
        "read",
        ("convergence", "set-convergence"),
    ),
    _bug("cas-anyway", "compare-and-sets matches anything", "linearizability", (), "cas", ("cas-register",)),
    _bug("lose-element", "adds is acknowledged and never made", "set", (), "add", ("set", "large-set")),
    _bug("lose-amount", "increments is acknowledged and never made", "counter", (), "increment", ("counter",)),
    _bug("same-id", "ids was given before", "unique-ids", (), "generate", ("unique-ids",)),
    _bug("lose-value", "enqueues is acknowledged and never made", "queue", (), "enqueue", ("queue",)),
    _bug("lose-entry", "appends is acknowledged and never made", "append-log", (), "append", ("append-log",)),
    _bug("lose-text", "appends to strings is acknowledged and never made", "kv", (), "append_text", ("kv",)),
    _bug(
        "same-token",
        "acquires is given the token of the one before",
        "fenced-lock",
        (),
        "acquire_token",
        ("fenced-lock",),
    ),
    _bug("lose-transfer", "transfers never reaches its target", "bank", (), "transfer", ("bank",)),
    _bug("long-fork", "reads in transactions misses a write", "long-fork", (), "transact_registers", ("long-fork",)),
    _bug(
        "two-leases",
        "acquires of a lock whose lease is valid is granted",
        "leased-lock",
        (),
        "acquire_lease",
        ("leased-lock",),
    ),
    _bug("two-holders", "acquires of a lock that is held is granted", "mutex", (), "acquire", ("lock",)),
    _bug(
        "lost-update",
        "appends overwrites the one before it",
        "list-append",
        (),
        "transact_lists",
        ("list-append",),
    ),
    _bug(
        "stale-transaction",
        "reads in transactions is answered with the value before the last one",
        "rw-register",
        (),
        "transact_registers",
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
    needs = Needs()
    notices_damage: Mapping[str, str] = {}
    processes: Mapping[str, str] = {}
    unreachable_by: Mapping[str, str] = {}
    members = None

    async def install(self, nodes: Sequence[Node], *, seed: int, bug: str | None) -> None:
        return None

    async def start(self, node: Node) -> None:
        return None

    async def status(self, node: Node) -> NodeStatus | None:
        return None

    async def ready(self, nodes: Sequence[Node]) -> str | None:
        return None

    async def caught_up(self, nodes: Sequence[Node], key_count: int) -> str | None:
        return None

    def client_config(self, *, seed: int, bug: str | None) -> dict[str, Any]:
        return {"run": uuid4().hex, "seed": seed, "bug": bug}

    async def collect(self, node: Node, folder: Path) -> None:
        return None

    def complaints(self, run_folder: Path) -> Sequence[Complaint]:
        return ()

    def tables(self, run_folder: Path, copies: Sequence[Collected], started_on: StartedOn) -> None:
        return None
