"""What only the harness knows of a run, gathered while it goes on: the content of outcome.json (results/README.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.backends.backend import Exit, HostHealth
from harness.run.online import OnlineRecord
from system_under_test.subject import Complaint, Declares


@dataclass
class RunOutcome:
    """The fields of outcome.json of the same names; `interrupted` and `set_up_failure` say why later ones are empty."""

    declares: Declares
    scheduled_rate_hz: float
    achieved_rate_hz: float | None = None
    phases: list[dict[str, Any]] = field(default_factory=list)
    loop_stalls: list[dict[str, float]] = field(default_factory=list)
    loop_late_ms: dict[str, float] = field(default_factory=dict)
    longest_copy_stop_s: float = 0.0
    health: HostHealth = field(default_factory=HostHealth)
    recovery: dict[str, Any] = field(default_factory=dict)
    deaths: list[dict[str, Any]] = field(default_factory=list)
    final_reads: dict[str, str] = field(default_factory=dict)
    leaders: list[dict[str, object]] = field(default_factory=list)
    set_up_failure: str = ""
    interrupted: bool = False
    stopped: dict[str, Any] = field(default_factory=dict)
    online: OnlineRecord | None = None

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        health = data.pop("health")
        return {**data, "steal_s": dict(health["steal_s"])}


def deaths(exits: Sequence[Exit], complaints: Sequence[Complaint], started_monotonic_ns: int) -> list[dict[str, Any]]:
    """Every end of a server process, and every complaint in a node's own log (without a time, and not ordered)."""
    ended = [
        {
            "node": end.node,
            "time_ns": end.monotonic_ns - started_monotonic_ns,
            "status": end.status,
            "ordered": end.ordered,
            "reason": f"killed by signal {-end.status}" if end.status < 0 else f"exited with status {end.status}",
            "excerpt": "",
        }
        for end in exits
    ]
    complained = [
        {
            "node": complaint.node,
            "time_ns": -1,
            "status": 0,
            "ordered": False,
            "reason": complaint.reason,
            "excerpt": complaint.excerpt,
        }
        for complaint in complaints
    ]
    return ended + complained
