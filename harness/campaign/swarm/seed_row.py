"""The row that a seed of the swarm leaves: its columns, and where their values come from."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from harness.campaign.swarm.scenario import Scenario

if TYPE_CHECKING:
    from harness.campaign.swarm.world import Played

VALID, INVALID, FAILED, TOO_LONG = "valid", "invalid", "failed", "too long"
"""The verdicts of a seed.  FAILED: its process ended.  TOO_LONG: it used more CPU time than it may."""

_TEXT = pa.list_(pa.string())
SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("seed", "nodes", "operations", "ok", "rows", "epochs")),
        *((name, pa.float64()) for name in ("found_s", "simulated_s", "cpu_s", "calm_s")),
        *((name, _TEXT) for name in ("classes", "struck", "aims")),
        *(
            (name, pa.string())
            for name in (
                *("layer", "workload", "bug", "revision", "python", "verdict", "symptom", "rule", "what", "digest"),
                *("moments", "transitions", "faults"),
            )
        ),
    ]
)
"""Moments, transitions and faults are JSON objects of counts."""


def row_of(played: Played, revision: str, aims: Sequence[str]) -> dict[str, Any]:
    """What became of a seed.  aims: what it was aimed at."""
    first = played.found[0] if played.found else None
    return unplayed_row(played.scenario, revision, aims, INVALID if first else VALID) | {
        "symptom": played.symptom,
        "rule": first.rule if first else "",
        "what": first.what if first else "",
        "found_s": first.time_s if first else -1.0,
        "struck": list(played.struck),
        "digest": played.digest,
        "simulated_s": played.simulated_s,
        "cpu_s": played.cpu_s,
        "operations": played.operations,
        "ok": played.ok,
        "rows": played.rows,
        "epochs": played.epochs,
        "calm_s": played.calm_s,
        "moments": json.dumps(played.moments),
        "transitions": json.dumps({f"{a} > {b}": n for (a, b), n in played.transitions.items()}),
        "faults": json.dumps({" / ".join(key): n for key, n in played.faults.items()}),
    }


def unplayed_row(
    scenario: Scenario, revision: str, aims: Sequence[str], verdict: str, what: str = ""
) -> dict[str, Any]:
    """Of a seed that was not played, or not to its end.  what: why not."""
    return {
        "seed": scenario.seed,
        "layer": scenario.layer,
        "nodes": scenario.nodes,
        "workload": scenario.workload,
        "bug": scenario.bug,
        "classes": list(scenario.classes),
        "aims": list(aims),
        "revision": revision,
        "python": platform.python_version(),
        "verdict": verdict,
        "symptom": f"{verdict}: {what}" if what else "",
        "rule": "",
        "what": what,
        "found_s": -1.0,
        "struck": [],
        "digest": "",
        "simulated_s": 0.0,
        "cpu_s": 0.0,
        "operations": 0,
        "ok": 0,
        "rows": 0,
        "epochs": 0,
        "calm_s": -1.0,
        "moments": "{}",
        "transitions": "{}",
        "faults": "{}",
    }
