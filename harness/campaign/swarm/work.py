"""Seeds of a swarm as tasks of Spark, the row of each seed, and the coverage of all rows.

*Tasks.*  Each task plays its seeds in a new process.

    run_task(task)                            on a worker of Spark
      python -m harness.campaign.swarm.work   the new process: seeds on stdin, one row of JSON on stdout for each

The process has a limit of CPU time, and the worker limits its wall-clock time.  A seed that exceeds a limit gets a row
that says so, and the other seeds of the task are played in another process.

*Rows.*  Their columns, and the source of each value.

*Coverage.*  Situations that the seeds of a swarm have met or not, and storms that are aimed at situations.

A point of coverage is an event, a transition of the table of roles, or a fault with the role that it hit and the phase.
`aims_at` chooses faults that seldom hit some role in some phase.  `aimed` adds cards to a storm, each at an event at
which a server has that role.  Some points cannot be met, so points that were often aimed at are seldom chosen again.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from harness.campaign.swarm.scenario import FAULTS, MOMENTS, Scenario
from harness.campaign.swarm.storm_of_seed import AIMED, card_of, draw, with_cards
from system_under_test.kraft.raft.states import LEGAL

WALL_S_A_SEED = 600


@dataclass(frozen=True, slots=True)
class SeedTask:
    """Seeds of one task.

    nodes: number of voters; 0 lets each seed draw it
    revision: revision of the code that must play these seeds
    cpu_s_max: CPU seconds allowed for each seed
    aims: points of coverage to aim at; each seed uses some of them
    """

    seeds: tuple[int, ...]
    seconds: float = 60.0
    rate_hz: float = 50.0
    nodes: int = 0
    bug: str = ""
    revision: str = ""
    cpu_s_max: int = 120
    aims: tuple[str, ...] = ()

    def scenario(self, seed: int, aims: Sequence[str] = ()) -> Scenario:
        """Return the scenario of a seed.  aims: points of coverage at which its cards aim (`aims_of`)."""
        drawn = draw(seed, self.seconds, self.rate_hz, self.nodes, self.bug)
        return aimed(drawn, aims)


def run_task(task: SeedTask) -> list[dict[str, Any]]:
    """Return one row for each seed."""
    rows: list[dict[str, Any]] = []
    left = list(task.seeds)
    while left:
        found, why = _in_a_fresh_process({**asdict(task), "seeds": left})
        rows += found
        left = left[len(found) :]
        if left and why:
            aims = aims_of(left[0], task.aims)
            verdict = TOO_LONG if why == TOO_LONG else FAILED
            rows.append(unplayed_row(task.scenario(left[0], aims), task.revision, aims, verdict, why))
            left = left[1:]
    return rows


def _in_a_fresh_process(task: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of the played seeds, and the reason why the other seeds were not played."""
    command = [sys.executable, "-P", "-m", "harness.campaign.swarm.work"]
    root = Path(__file__).resolve().parents[3]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root)
    late = False
    try:
        out, problems = child.communicate(json.dumps(task).encode(), timeout=WALL_S_A_SEED * len(task["seeds"]))
    except subprocess.TimeoutExpired:
        late = True
        child.kill()
        out, problems = child.communicate()
    lines = out.decode(errors="replace").split("\n")[:-1]  # the last piece is empty or an unfinished row
    rows = [json.loads(line) for line in lines]
    if len(rows) == len(task["seeds"]):
        return rows, ""
    if late or child.returncode == -24:  # SIGXCPU
        return rows, TOO_LONG
    last = (problems.decode(errors="replace").strip().splitlines() or [f"exit status {child.returncode}"])[-1]
    return rows, last


def main() -> None:
    """Play the seeds of the task on stdin."""
    from harness.campaign.swarm.world import play

    task = msgspec.json.decode(sys.stdin.buffer.read(), type=SeedTask)
    for seed in task.seeds:
        used_s = resource.getrusage(resource.RUSAGE_SELF)
        until_s = int(used_s.ru_utime + used_s.ru_stime) + task.cpu_s_max
        resource.setrlimit(resource.RLIMIT_CPU, (until_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        aims = aims_of(seed, task.aims)
        scenario = task.scenario(seed, aims)
        try:
            played = play(scenario)
        except Exception as problem:  # noqa: BLE001 - a seed that cannot be played gets a row, too
            row = unplayed_row(scenario, task.revision, aims, FAILED, f"{type(problem).__name__}: {problem}")
        else:
            row = row_of(played, task.revision, aims)
        print(json.dumps(row), flush=True)


def tasks_of(seeds: Sequence[int], each: int, plain: SeedTask) -> list[SeedTask]:
    """Split the seeds into tasks of this size."""
    return [replace(plain, seeds=tuple(seeds[at : at + each])) for at in range(0, len(seeds), each)]


if TYPE_CHECKING:
    from harness.campaign.swarm.world import Played

VALID, INVALID, FAILED, TOO_LONG = "valid", "invalid", "failed", "too long"
"""The verdicts of a seed.  FAILED: its process ended unexpectedly.  TOO_LONG: it exceeded its CPU time."""


@dataclass(slots=True)
class SeedRow:
    """A row of the swarm's folder.  The defaults are the values for a seed that was not played to its end.

    moments, transitions, faults: JSON objects with numbers of occurrences
    what: description of the violation, or the reason why the seed was not played
    """

    seed: int
    nodes: int
    workload: str
    bug: str
    classes: list[str]
    aims: list[str]
    revision: str
    python: str
    verdict: str
    symptom: str = ""
    rule: str = ""
    what: str = ""
    digest: str = ""
    found_s: float = -1.0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    calm_s: float = -1.0
    operations: int = 0
    ok: int = 0
    rows: int = 0
    epochs: int = 0
    struck: list[str] = field(default_factory=list)
    moments: str = "{}"
    transitions: str = "{}"
    faults: str = "{}"


_TYPES = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "list[str]": pa.list_(pa.string())}
SCHEMA = pa.schema([(each.name, _TYPES[str(each.type)]) for each in fields(SeedRow)])
_AS_PLAYED = ("symptom", "digest", "simulated_s", "cpu_s", "operations", "ok", "rows", "epochs", "calm_s")


def row_of(played: Played, revision: str, aims: Sequence[str]) -> dict[str, Any]:
    """Return the row of a seed that was played.  aims: points at which its cards aimed."""
    first = played.found[0] if played.found else None
    found = {} if first is None else {"rule": first.rule, "what": first.what, "found_s": first.time_s}
    return {
        **unplayed_row(played.scenario, revision, aims, INVALID if first else VALID),
        **{name: getattr(played, name) for name in _AS_PLAYED},
        **found,
        "struck": list(played.struck),
        "moments": json.dumps(played.moments),
        "transitions": json.dumps({f"{a} > {b}": n for (a, b), n in played.transitions.items()}),
        "faults": json.dumps({" / ".join(key): n for key, n in played.faults.items()}),
    }


def unplayed_row(it: Scenario, revision: str, aims: Sequence[str], verdict: str, what: str = "") -> dict[str, Any]:
    """Return the row of a seed that was not played to its end. what: the reason."""
    version, symptom = platform.python_version(), f"{verdict}: {what}" if what else ""
    begun = (it.seed, it.nodes, it.workload, it.bug, list(it.classes), list(aims), revision, version)
    return asdict(SeedRow(*begun, verdict, symptom, what=what))


PHASES = ("no leader", "new leader", "steady")
ROLES = ("leader", "follower", "candidate", "prospective", "unattached", "resigned", "dead")
AIMS = 5
"""Number of cards that are added to a storm."""
AIMS_OF_A_WAVE = 40

_MOMENTS_OF: Mapping[str, Sequence[str]] = {
    "leader": ("elected", "first-fetch", "first-commit", "appended", "fsync", "succeeded"),
    "follower": ("followed", "appended", "truncated", "fsync"),
    "candidate": ("campaign",),
    "prospective": ("campaign",),
    "unattached": ("started", "vote"),
    "resigned": ("resigned",),
}
"""Role -> events at which a server has this role."""
ALL_AIMS = tuple(f"{fault} / {role} / {phase}" for fault in AIMED for role in _MOMENTS_OF for phase in PHASES)
"""Aims in the words of a swarm's rows."""


@dataclass(slots=True)
class StormCoverage:
    """Situations that were met, with the number of times."""

    moments: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    aims: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        for name in ("moments", "transitions", "faults"):
            getattr(self, name).update(json.loads(row[name]))
        self.aims.update(row.get("aims", ()))  # rows of older versions lack this field

    def never_met(self) -> dict[str, list[str]]:
        """Return the events, the transitions of the table of roles, and the faults with roles that no seed has met.

        Faults on dead servers are not listed, because most faults need a running server.
        """
        transitions = {f"{old} > {new}" for old, new in LEGAL if old != new}
        faults = {f"{fault} / {role}" for fault in FAULTS for role in ROLES if role != "dead"}
        met = {" / ".join(key.split(" / ")[:2]) for key in self.faults}
        phases = {f"{fault} / {phase}" for fault in FAULTS for phase in PHASES}
        met_in = {f"{key.split(' / ')[0]} / {key.split(' / ')[2]}" for key in self.faults}
        return {
            "moments": sorted(set(MOMENTS) - set(self.moments)),
            "transitions": sorted(transitions - set(self.transitions)),
            "faults and roles": sorted(faults - met),
            "faults and phases": sorted(phases - met_in),
        }

    def aims_at(self, random: Random, count: int) -> tuple[str, ...]:
        """Return at most this many points of ALL_AIMS that were seldom met and seldom aimed at."""
        weights = [1 / (1 + self.faults[aim] + self.aims[aim]) ** 2 for aim in ALL_AIMS]
        return tuple(dict.fromkeys(random.choices(ALL_AIMS, weights, k=count)))


def aims_of(seed: int, aims_of_wave: Sequence[str]) -> tuple[str, ...]:
    """Return the aims of a wave that are assigned to this seed."""
    return tuple(Random(f"{seed}/aims of wave").sample(aims_of_wave, min(AIMS, len(aims_of_wave))))


def aimed(scenario: Scenario, aims: Sequence[str]) -> Scenario:
    """Return the scenario with one more card for each of these points."""
    random = Random(f"{scenario.seed}/aims")
    cards = []
    for aim in aims:
        fault, role, _ = aim.split(" / ")
        card = card_of(random, fault, round(random.uniform(0, max(1.0, scenario.seconds - 2)), 3))
        delay_s = round(random.choice((0.0, 0.002, 0.02)) * random.random(), 5)
        moment = random.choice(_MOMENTS_OF[role])
        cards.append(replace(card, who="it", moment=moment, nth=random.choice((1, 1, 2)), delay_s=delay_s))
    return with_cards(scenario, cards)


if __name__ == "__main__":
    main()
