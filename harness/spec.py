"""The spec of one test: everything that decides what it does, as a value.

The seed decides every random choice.  Each part draws from a stream of its own, named after the part.  So a change in
one (an operation more, a card less) does not shift the choices of the others.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

from checkers.run_quality.criteria.waivers import WAIVABLE
from system_under_test.client import Placement
from system_under_test.subject import FAILOVER_S

CLIENT_NODES = ("c1", "c2")
_MAKEFILE = Path(__file__).resolve().parents[1] / "Makefile"


LIMITS: Mapping[str, tuple[float, float]] = {
    "nodes": (1, 9),
    "concurrency": (4 * len(CLIENT_NODES), 1_000),
    "rate_hz": (0, 1_000_000),
    "keys": (1, 10_000),
    "time_limit_s": (1, 7 * 86_400),
    "op_timeout_s": (0.01, 3_600),
    "recovery_limit_s": (1, 86_400),
    "holds": (0, 100),
    "seed": (-(2**63), 2**63 - 1),
}
"""Least and largest value of every number.  More keys than this cannot be created and read again within a minute."""


class WrongSpec(ValueError):
    """The test cannot be run.  The message names the wrong option and its possible values."""


def unknown_name(what: str, name: str, known: Collection[str]) -> str:
    """The sentence for a name that is none: which name was probably meant, and which there are."""
    near = difflib.get_close_matches(name, known, 1)
    meant = f"did you mean {near[0]!r}?  Known" if near else "known"
    return f"unknown {what} {name!r}; {meant}: {', '.join(known) or 'none'}"


_SETTING_MOST = 1e9
KINDS_IN_A_NAME = 4
"""A test of more kinds of fault is named after their number: its name is the name of a folder."""


@dataclass(frozen=True, slots=True)
class Spec:
    """concurrency: processes at once, over all client nodes.  rate_hz: operations invoked per second in all, 0 = as
    fast as answers come.  time_limit_s: length of the main phase.  bug: planted bug, None for the clean system."""

    subject: str = "kraft"
    workload: str = "register"
    nemesis: str = "partition"
    backend: str = "auto"
    nodes: int = 5
    concurrency: int = 10
    rate_hz: float = 200.0
    keys: int = 10
    time_limit_s: float = 60.0
    seed: int = 0
    bug: str | None = None
    op_timeout_s: float = 2.0
    recovery_limit_s: float = 60.0
    holds: float = 0.0
    """So many times as long as usual faults hold, with the pauses between them; 0: as the system's time to fail over
    demands (`Declares.failover_s`)."""
    set: str = ""
    """Parameters of the workload: NAME=VALUE, with commas (`Workload.parameters`)."""
    waive: str = ""
    """Names of demands that are not made of this run, with commas (`checkers/run_quality.criteria.waivers.py`)."""
    schedule: str | None = None
    """A schedule file (JSON) to play instead of dealing one."""
    as_executed: bool = False
    """Play the faults of a run's schedule on the nodes of the same names, also if others lead now."""
    online: bool = True
    """Judge while the run goes on, and report what is found."""
    over_budget: bool = False
    """Let faults cost more than a minority of servers what they had fsynced; the system is excused for its loss."""
    stop_on_violation: bool = False
    """End the main phase as soon as something is found."""
    inventory: str | None = None
    """The file that names the hosts (TOML, docs/ssh.md), for a backend whose nodes are hosts of one's own."""
    finding: str | None = None
    """The known finding that this run shows, or the clean run that it is."""
    clean: bool = False
    """The run is the counterpart of `finding`, or a clean run."""

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not value >= least:  # NaN is neither
                raise WrongSpec(f"{_option(name)} must be at least {_plain(least)}, not {_plain(value)}{_why(name)}")
            if value > most:
                raise WrongSpec(f"{_option(name)} must be at most {_plain(most)}, not {_plain(value)}")
        _ = self.settings
        for name in self.waived:
            if name not in WAIVABLE:
                raise WrongSpec(unknown_name("demand to waive", name, WAIVABLE))
        if self.stop_on_violation and not self.online:
            raise WrongSpec("--stop-on-violation needs online checks: it cannot go with --no-online")

    @property
    def test(self) -> str:
        """Name of the test, as in `make test-partition` and in results/."""
        kinds = self.nemesis.replace(":", "-").split(",")
        return f"test-{'-'.join(kinds)}" if len(kinds) <= KINDS_IN_A_NAME else f"test-{len(kinds)}-kinds"

    @property
    def settings(self) -> dict[str, float]:
        """Name -> value of each parameter in `set`.  Raises WrongSpec for what is no NAME=NUMBER."""
        found = {}
        for each in filter(None, (part.strip() for part in self.set.split(","))):
            name, _, text = each.partition("=")
            try:
                found[name.strip()] = value = float(text)
            except ValueError:
                value = -1.0
            if not 0 <= value < _SETTING_MOST:
                raise WrongSpec(f"--set takes NAME=NUMBER with a number of 0 or more, not {each!r:.60}")
        return found

    @property
    def waived(self) -> tuple[str, ...]:
        """The names in `waive`, each once."""
        return tuple(dict.fromkeys(filter(None, (name.strip() for name in self.waive.split(",")))))

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    def rng(self, stream: str) -> Random:
        """The random stream of one named part of this run."""
        return Random(f"{self.seed}/{stream}")

    def lengthened(self, failover_s: float) -> float:
        """So many times as long as usual everything takes that waits for a system to fail over; at least 1, unless the
        user chose it."""
        return self.holds or max(1.0, failover_s / FAILOVER_S)

    def placements(self) -> tuple[Placement, ...]:
        """Threads dealt over the client nodes in turn.  On each node the first two only read (one follows, one
        stays); the others do both, and following alternates so that over all nodes half follow."""
        placements = []
        for thread in range(self.concurrency):
            node, rank = thread % len(CLIENT_NODES), thread // len(CLIENT_NODES)
            placements.append(
                Placement(
                    thread=thread,
                    client_node=CLIENT_NODES[node],
                    follows=(rank + node) % 2 == 0,
                    reads_only=rank < 2,
                )
            )
        return tuple(placements)

    def rerun(self) -> str:
        """The shell command that runs this very test again: by make where there is a Makefile."""
        if not _MAKEFILE.exists():
            return shlex.join(["krucible", *self.words()])
        if self.finding is not None and not self.clean:
            backend = [] if self.backend == _DEFAULTS["backend"] else [f"BACKEND={self.backend}"]
            return shlex.join(["make", f"find-{self.finding}", f"SEED={self.seed}", *backend])
        by_make = self.finding is None and self.nemesis != "none" and ":" not in self.nemesis
        if by_make and not self._changed().keys() - _VARIABLES.keys():
            variables = [f"{_VARIABLES[name]}={_plain(value)}" for name, value in self._changed().items()]
            return shlex.join(["make", f"test-{self.nemesis}", f"SEED={self.seed}", *variables])
        return shlex.join(["python", "-m", "harness", *self.words()])

    def words(self) -> list[str]:
        """The arguments of `krucible` that run this very test."""
        if self.finding is not None:
            words = ["find", self.finding, *(["--clean"] if self.clean else []), "--seed", str(self.seed)]
            return [*words, *([] if self.backend == _DEFAULTS["backend"] else ["--backend", self.backend])]
        words = ["run", "--nemesis", self.nemesis, "--seed", str(self.seed)]
        for name, value in self._changed().items():
            if isinstance(value, bool):
                words.append(_option(name) if value else _option(name).replace("--", "--no-", 1))
            else:
                words += [_option(name), _plain(value)]
        return words

    def _changed(self) -> dict[str, Any]:
        """What is not as by default, without what every command names.  A bug without a workload would choose one."""
        named, kept = {"nemesis", "seed", "finding", "clean"}, {"workload"} if self.bug else set()
        if self.holds or "." in self.subject or "/" in self.subject:  # a slow system has other defaults
            kept = {*kept, "time_limit_s", "recovery_limit_s"}
        names = dict.fromkeys((*_VARIABLES, *_DEFAULTS))
        values = {name: getattr(self, name) for name in names if name not in named}
        return {name: value for name, value in values.items() if value != _DEFAULTS[name] or name in kept}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Spec:
        """Raises WrongSpec where a value is out of range; unknown names are left out (older or newer runs)."""
        known = {f.name for f in fields(Spec)}
        given = {k: v for k, v in data.items() if k in known}
        if not isinstance(given.get("finding", ""), str | None):
            raise WrongSpec(f"the finding of this run must be a name, not {given['finding']!r:.40}")
        for name, value in given.items():
            kind = type(_DEFAULTS[name])
            if kind in (bool, int, float, str) and not isinstance(value, (int, float) if kind is float else kind):
                raise WrongSpec(f"{_option(name)} must be {kind.__name__}, not {value!r:.40}")
        return Spec(**given)


_VARIABLES = {
    "nodes": "NODES",
    "time_limit_s": "TIME_LIMIT",
    "rate_hz": "RATE",
    "concurrency": "CONCURRENCY",
    "op_timeout_s": "OP_TIMEOUT",
    "recovery_limit_s": "RECOVERY_LIMIT",
    "holds": "HOLDS",
    "waive": "WAIVE",
    "set": "SET",
    "keys": "KEYS",
    "workload": "WORKLOAD",
    "subject": "SUBJECT",
    "backend": "BACKEND",
    "bug": "BUG",
    "schedule": "SCHEDULE",
    "stop_on_violation": "STOP_ON_VIOLATION",
    "inventory": "INVENTORY",
}
_DEFAULTS = {f.name: f.default for f in fields(Spec)}


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _why(name: str) -> str:
    if name != "concurrency":
        return ""
    return ": every client node needs two processes that only read and two that write; one of each follows the leader"


def _option(name: str) -> str:
    return "--" + name.removesuffix("_hz").removesuffix("_s").replace("_", "-")
