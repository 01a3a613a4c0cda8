"""Runs a swarm: seeds on Spark, wave by wave; counts, coverage, and a small schedule for each kind of failure.

The folder of a swarm:

    rows/part-N.parquet      one row per seed (`work.SCHEMA`)
    findings/NAME.json       a schedule for each symptom, shrunk; `krucible swarm --replay` plays it byte for byte
    summary.json             counts by Spark SQL, coverage, and the situations that no seed met

A seed that already has a row in the folder is not played again, so an interrupted swarm can be continued.

*Shrinking.*  A failing scenario is reduced while it violates the same rule.

A scenario is deterministic, so one play decides.  These parts are reduced in turn: the seconds after the violation,
halves and single cards (delta debugging, Zeller and Hildebrandt 2002), durations of faults, the numbers of nodes,
clients and operations, and special timings.  After each success the steps start over.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.shrinking import without_pieces
from checkers.spark.session import SparkJudge
from harness.campaign.swarm import work
from harness.campaign.swarm.scenario import Scenario, load
from harness.campaign.swarm.world import Played, play

SYMPTOMS_MAX = 20


@dataclass(slots=True)
class Swarm:
    """A swarm in a folder. say: prints a line. guided: each wave aims at situations that earlier waves seldom met."""

    folder: Path
    plain: work.SeedTask
    say: Callable[[str], None]
    each: int = 50
    waves_of: int = 4
    guided: bool = True
    rows: list[dict[str, Any]] = field(default_factory=list)
    coverage: work.StormCoverage = field(default_factory=work.StormCoverage)

    def run(self, seeds: Sequence[int], spark: SparkJudge, minutes: float, until_found: bool = False) -> None:
        """Play the seeds that have no row in the folder yet, until the time is up."""
        self._take_up()
        known = {(row["seed"], row["bug"]) for row in self.rows}
        left = [seed for seed in seeds if (seed, self.plain.bug) not in known]
        if len(left) < len(seeds):
            self.say(f"continues after {len(seeds) - len(left)} seeds in {self.folder}")
        began_s, done = time.monotonic(), 0
        while left and time.monotonic() - began_s < minutes * 60:
            tasks = work.tasks_of(left[: self.each * self.waves_of], self.each, self._aimed(left[0]))
            found = [row for rows in spark.run(work.run_task, tasks) for row in rows]
            left, done = left[sum(len(task.seeds) for task in tasks) :], done + len(found)
            self._keep(found)
            self.say(self._progress(found, done, len(left), time.monotonic() - began_s))
            if until_found and any(row["verdict"] == work.INVALID for row in found):
                break

    def _aimed(self, first_seed: int) -> work.SeedTask:
        if not self.guided or not self.rows:
            return self.plain
        return replace(self.plain, aims=self.coverage.aims_at(Random(f"{first_seed}/wave"), work.AIMS_OF_A_WAVE))

    def _take_up(self) -> None:
        for path in sorted((self.folder / "rows").glob("part-*.parquet")):
            self._note(pq.read_table(path).to_pylist())

    def _keep(self, rows: list[dict[str, Any]]) -> None:
        folder = self.folder / "rows"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{len(list(folder.glob('part-*.parquet'))):05}.parquet"
        partial = path.with_suffix(".partial")
        pq.write_table(pa.Table.from_pylist(rows, work.SCHEMA), partial)
        partial.rename(path)
        self._note(rows)

    def _note(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self.rows.append(row)
            self.coverage.add(row)

    def _progress(self, found: Sequence[Mapping[str, Any]], done: int, left: int, seconds: float) -> str:
        verdicts = Counter(row["verdict"] for row in self.rows)
        simulated_s, cpu_s = (sum(row[name] for row in found) for name in ("simulated_s", "cpu_s"))
        never = self.coverage.never_met()
        parts = [f"{len(self.rows)} seeds", *(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))]
        parts += [f"{done / seconds:.1f} seeds/s", f"{simulated_s / max(cpu_s, 1e-9):.0f} simulated s a CPU s"]
        parts += [f"never met: {sum(map(len, never.values()))} of coverage", f"{left} left"]
        return "; ".join(parts)

    # Failures

    def failures(self) -> dict[str, list[dict[str, Any]]]:
        """Return {symptom: its rows, the fastest seed first}."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            if row["verdict"] != work.VALID:
                found.setdefault(row["symptom"], []).append(row)
        for rows in found.values():
            rows.sort(key=lambda row: (row["found_s"], row["seed"]))
        return dict(sorted(found.items()))

    def keep_findings(self, plays_max: int) -> list[Path]:
        """Shrink one failure of each symptom, and store its schedule."""
        folder = self.folder / "findings"
        kept = []
        for symptom, rows in list(self.failures().items())[:SYMPTOMS_MAX]:
            if rows[0]["verdict"] != work.INVALID:
                continue
            path = folder / f"{re.sub('[^a-z0-9]+', '-', symptom.lower()).strip('-')}.json"
            kept.append(path)
            if path.exists():
                continue
            folder.mkdir(parents=True, exist_ok=True)
            self.say(f"{symptom}: seen by {len(rows)} seeds; seed {rows[0]['seed']} is shrunk")
            original = play(self.plain.scenario(rows[0]["seed"], rows[0].get("aims", ())))
            keep(shrink(original, plays_max, say=self.say), path)
        return kept


def keep(played: Played, path: Path) -> None:
    """Store a schedule with its expected result."""
    expects = {"symptom": played.symptom, "digest": played.digest, "what": played.found[0].what}
    path.write_text(json.dumps({**played.scenario.to_json(), "expects": expects}, indent=1) + "\n")


def replay(path: Path) -> tuple[Played, str]:
    """Play a stored schedule again, and compare the result with the stored one.

    Raises OSError, and ValueError with a message for users if the file is no schedule.
    """
    scenario = load(path)
    expects = json.loads(path.read_text()).get("expects", {})
    played = play(scenario)
    if not expects:
        return played, ""
    if played.digest == expects["digest"]:
        return played, "byte for byte as stored"
    same = played.symptom == expects.get("symptom", expects.get("signature"))  # the key's name in older ledgers
    return played, f"other than stored, {'with the same result' if same else 'and with another result'}"


def summary(swarm: Swarm, spark: SparkJudge) -> dict[str, Any]:
    """Return counts by Spark SQL over all rows of the folder, with coverage."""
    session = spark.sql_session()
    session.read.parquet((swarm.folder / "rows").resolve().as_uri()).createOrReplaceTempView("seeds")

    def ask(statement: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in session.sql(statement).collect()]

    counts = "count(*) seeds, round(sum(simulated_s)) simulated_s, round(sum(cpu_s), 1) cpu_s"
    return {
        "verdicts": ask(f"SELECT verdict, {counts} FROM seeds GROUP BY verdict ORDER BY verdict"),
        "symptoms": ask(
            "SELECT symptom, verdict, count(*) seeds, min(seed) first_seed, min(found_s) soonest_s FROM seeds "
            f"WHERE verdict <> '{work.VALID}' GROUP BY symptom, verdict ORDER BY seeds DESC"
        ),
        "moments": dict(swarm.coverage.moments),
        "transitions": dict(swarm.coverage.transitions),
        "faults": dict(swarm.coverage.faults),
        "never_met": swarm.coverage.never_met(),
    }


def in_words(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for row in found["verdicts"]:
        rate = row["simulated_s"] / row["cpu_s"] if row["cpu_s"] else 0.0
        lines.append(
            f"{row['verdict']:<8} {row['seeds']:>7} seeds, {row['simulated_s']:>9.0f} simulated s, "
            f"{row['cpu_s']:>8.1f} CPU s ({rate:.0f} a CPU s)"
        )
    for row in found["symptoms"]:
        lines.append(f"{row['verdict']}: {row['symptom']}: {row['seeds']} seeds, the first is {row['first_seed']}")
    for what, never in found["never_met"].items():
        lines.append(f"never met of {what}: {', '.join(never) if never else 'nothing: all were met'}")
    return lines


NODES_MIN = 3


def shrink(
    original: Played, plays_max: int = 400, run: Callable[[Scenario], Played] = play, say: Callable[[str], None] = print
) -> Played:
    """Return the smallest scenario found that violates the first rule that `original` violated; `plays_max` limits the
    number of plays.
    """
    best, plays, rule = original, 0, original.found[0].rule
    again = True
    while again:
        again = False
        for smaller in islice(_smaller(best), plays_max - plays):
            plays += 1
            tried = run(smaller)
            if tried.found and tried.found[0].rule == rule:
                best, again = tried, True
                say(f"  {words(best.scenario)}")
                break
    return best


def words(scenario: Scenario) -> str:
    cards = len(scenario.cards)
    return (
        f"{cards} card{'' if cards == 1 else 's'}, {scenario.seconds:g} s, {scenario.nodes} nodes, "
        f"{scenario.processes} clients, {scenario.rate_hz:g} operations/s"
    )


def _smaller(failing: Played) -> Iterator[Scenario]:
    scenario = failing.scenario
    ends_s = math.ceil(failing.found[0].time_s)
    if ends_s < scenario.seconds:
        yield replace(scenario, seconds=float(max(1, ends_s)))
    cards = scenario.cards
    yield from (replace(scenario, cards=kept) for kept in without_pieces(cards, len(cards)))
    if scenario.nodes > NODES_MIN:
        rates = scenario.rates[:NODES_MIN]
        yield replace(scenario, nodes=NODES_MIN, rates=rates)
    if scenario.rates:
        yield replace(scenario, rates=())
    if scenario.processes > 2:
        yield replace(scenario, processes=max(2, scenario.processes // 2))
    if scenario.keys > 1:
        yield replace(scenario, keys=1)
    if scenario.rate_hz > 2:
        yield replace(scenario, rate_hz=scenario.rate_hz / 2)
    for at, card in enumerate(cards):
        if card.for_s > 0.5:
            yield replace(scenario, cards=(*cards[:at], replace(card, for_s=card.for_s / 2), *cards[at + 1 :]))
        if card.with_:
            yield replace(scenario, cards=(*cards[:at], replace(card, with_=card.with_[1:]), *cards[at + 1 :]))
    if scenario.seconds > 2:
        yield replace(scenario, seconds=float(math.floor(scenario.seconds * 0.8)))
