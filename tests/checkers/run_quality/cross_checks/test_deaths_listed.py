"""A death that is listed as ordered needs an order: of a fault that ends servers, or of the collection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkers.base.stored_run import StoredRun
from checkers.record.reading import FAULTS, OUTCOME, TEST
from checkers.run_quality.cross_checks.deaths_listed import without_order

S = 1_000_000_000
PHASES = [{"name": "main", "start_ns": S, "end_ns": 60 * S}, {"name": "collection", "start_ns": 61 * S, "end_ns": -1}]


def fault(kind: str = "kill", node: str = "n1", **more: Any) -> dict[str, Any]:
    """A fault that held from 20 to 30 s, and was measured to do so."""
    states = {"held": {"states": {node: "dead"}}, "healed": {"states": {node: "running"}}}
    measured = [
        {"phase": phase, "from_ns": at * S, "to_ns": at * S, "states": {node: state}}
        for phase, at, state in [("inject", 20, "dead")]
        + [("hold", at, "dead") for at in range(21, 30)]
        + [("before heal", 30, "dead"), ("heal", 30, "running")]
    ]
    times = {"injected_ns": 20 * S, "heal_ordered_ns": 30 * S, "healed_ns": 30 * S, "apply_ms": 4.0}
    card = {"number": 1, "kind": kind, "name": "one", "at_s": 20.0, "heal_s": 30.0}
    words = {"achieved": "installed", "words": f"{node} ends"}
    return {"card": card, "nodes": [node], "ordered": states, "measured": measured} | words | times | more


ENDS_NONE: dict[str, Any] = {"ordered": {"held": {"states": {"n1": "stopped"}}, "healed": {}}}
"""The order of a fault that ends no server."""


def found(folder: Path, at_s: float, *faults: dict[str, Any], phases: Any = PHASES, ordered: bool = True) -> list[str]:
    deaths = [{"node": "n1", "time_ns": int(at_s * S), "status": -9, "ordered": ordered}]
    contents = {
        FAULTS: list(faults),
        OUTCOME: {"deaths": deaths, "phases": phases},
        TEST: {"spec": {"backend": "docker"}, "run_id": "1", "started_monotonic_ns": 1},
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    return without_order(StoredRun(folder))


@pytest.mark.parametrize(
    ("at_s", "faults"),
    [
        (62, []),
        (60.5, []),  # the clock of a node is a little late
        (20, [fault()]),
        (29.9, [fault("one's own", **ENDS_NONE, settings={"may_die": True})]),
        (31, [fault("stop")]),
        (16, [fault("power", apply_ms=4_000.0)]),
        (50, [fault("stop", measured=[])]),  # it failed, and the server obeyed late
        (50, [fault("stop", injected_ns=-1, achieved="skipped")]),
        (50, [fault("kill", healed_ns=-1)]),
    ],
)
def test_an_order_explains_a_death(tmp_path: Path, at_s: float, faults: list[dict[str, Any]]) -> None:
    assert found(tmp_path, at_s, *faults) == []


@pytest.mark.parametrize(
    ("at_s", "faults"),
    [
        (20, []),
        (20, [fault(node="n2")]),
        (10, [fault()]),
        (40, [fault()]),
        (20, [fault("one's own", node="n2")]),
        (20, [fault("pause", **ENDS_NONE)]),
        (20, [fault("partition", ordered={"held": {}, "healed": {}}, cut=[["n1", "n2"]])]),
    ],
)
def test_a_death_without_an_order_is_noticed(tmp_path: Path, at_s: float, faults: list[dict[str, Any]]) -> None:
    (words,) = found(tmp_path, at_s, *faults)
    assert f"an ordered death of n1 at {at_s:.1f} s" in words


def test_nothing_is_claimed_of_unexpected_deaths_and_of_runs_that_were_broken_off(tmp_path: Path) -> None:
    assert found(tmp_path, 20, ordered=False) == []
    assert found(tmp_path, 20, phases=PHASES[:1]) == []
