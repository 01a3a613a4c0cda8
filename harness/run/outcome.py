"""What only the harness knows of a run, gathered while it goes on: the content of outcome.json (results/README.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from checkers.record.outcome import Death, Phase, Stopped
from harness.backends.backend import HostHealth
from harness.run.watching.checks_while_running import OnlineRecord
from system_under_test.subject import Declares


@dataclass
class RunOutcome:
    """The fields of outcome.json of the same names; `interrupted` and `set_up_failure` say why later ones are empty."""

    declares: Declares
    scheduled_rate_hz: float
    achieved_rate_hz: float | None = None
    phases: list[Phase] = field(default_factory=list)
    loop_stalls: list[dict[str, float]] = field(default_factory=list)
    loop_late_ms: dict[str, float] = field(default_factory=dict)
    longest_copy_stop_s: float = 0.0
    health: HostHealth = field(default_factory=HostHealth)
    processor: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    recovery: dict[str, Any] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    final_reads: dict[str, str] = field(default_factory=dict)
    final_reads_by_server: dict[str, dict[str, str]] = field(default_factory=dict)
    leaders: list[dict[str, object]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    set_up_failure: str = ""
    interrupted: bool = False
    stopped: Stopped | None = None
    online: OnlineRecord | None = None
    coverage: dict[str, Any] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    """Why a violation may be a mistake of the client, which is not the harness' own; a sentence each."""

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        health = data.pop("health")
        return {**data, "steal_s": dict(health["steal_s"])}
