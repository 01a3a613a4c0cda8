"""The canary as a subject: nothing to install, start or collect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from system_under_test.canary.client import ODDS
from system_under_test.subject import Bug, Collected, Complaint, Declares, Node, NodeStatus

_BUGS = (
    Bug(
        "stale",
        f"about one read in {ODDS} is answered with the value before the last one",
        found_by="linearizability",
        witness_kinds=("stale read",),
        decision_point="system_under_test.canary.client:Registers.read",
    ),
    Bug(
        "lose",
        f"about one write in {ODDS} is acknowledged and never made",
        found_by="linearizability",
        witness_kinds=("lost write", "stale read"),
        decision_point="system_under_test.canary.client:Registers.write",
    ),
)


class Canary:
    name = "canary"
    summary = "an in-process fake register: the harness' test of itself"
    client_module = "system_under_test.canary.client"
    port = 0
    declares = Declares(nodes=False, logs=False, traces=False, elections=False, faults=False)
    bugs: Mapping[str, Bug] = {bug.name: bug for bug in _BUGS}
    workloads = ("register",)

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

    def tables(self, run_folder: Path, copies: Sequence[Collected], started_monotonic_ns: int) -> None:
        return None
