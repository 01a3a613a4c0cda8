"""Checks that the records of a run hold every field that runs of today's format hold.

Older versions recorded less.  Where a field is missing, a checker assumes what is right for their runs, and that is
seldom the strictest assumption.  So a forger could remove fields until a run looks older than it is.  The format of the
run (`base/ledger.py`) ends that: a run of format WHOLE_SINCE or later must hold every field below.

A field that is only there at times is not listed.  Its absence must never excuse anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from checkers.base.clocks import one_clock
from checkers.base.json_file import mapping, number, sequence
from checkers.base.stored_run import StoredRun
from checkers.record.reading import COPIES_INDEX, FAULTS, OUTCOME, TEST
from checkers.run_quality.cross_checks.dealt_operations import VERSION_OF_GENERATORS
from checkers.sealing.manifest import CODE_FOLDERS, MANIFEST, bound_files

WHOLE_SINCE = 2
"""The first format of which every run holds all these fields."""

CLOCK_ERROR_NS_MAX = 5_000_000_000
"""A clock of another machine that is known less well could be set to anything.  Readings differ by a round trip."""

OF_TEST = frozenset({"format", "run_id", "spec", "started_monotonic_ns", "schedule", "clocks", VERSION_OF_GENERATORS})
OF_OUTCOME = frozenset(
    [
        "declares",
        "phases",
        "recovery",
        "deaths",
        "final_reads",
        "final_reads_by_server",
        "leaders",
        "set_up_failure",
        "interrupted",
        "stopped",
        "online",
        "coverage",
        "doubts",
        "achieved_rate_hz",
        "scheduled_rate_hz",
        "loop_stalls",
        "loop_late_ms",
        "longest_copy_stop_s",
        "steal_s",
    ]
)
OF_A_DEATH = frozenset(["node", "time_ns", "status", "ordered", "reason", "excerpt"])
OF_A_FAULT = frozenset(
    [
        "card",
        "achieved",
        "words",
        "reason",
        "leader",
        "epoch",
        "kind",
        "cut",
        "nodes",
        "ordered",
        "settings",
        "injected_ns",
        "heal_ordered_ns",
        "healed_ns",
        "apply_ms",
        "lapsed_ns",
        "over_budget",
        "impossible",
        "measured",
        "inject_proof",
        "heal_proof",
    ]
)
OF_A_CARD = frozenset(["number", "kind", "name", "at_s", "heal_s", "like", "after", "moment"])
OF_AN_ORDER = frozenset({"states", "values"})
OF_A_MEASUREMENT = frozenset(
    ["phase", "from_ns", "to_ns", "links", "also_cut", "unsettled", "states", "values", "problems"]
)
OF_A_COPY = frozenset(["copy", "when", "node", "state", "folder", "trace_size_bytes", "taken_ns"])


def lacking(run: StoredRun) -> list[str]:
    """One sentence for each record that lacks a field; empty if the demanded format is older.  Raises BrokenFile."""
    if run.demands.format < WHOLE_SINCE:
        return []
    return [*_of_test(run), *_of_outcome(run), *_of_faults(run), *_of_copies(run), *_of_code(run)]


def _without(record: Any, fields: Collection[str], named: str) -> Iterator[str]:
    """A sentence if the record lacks fields, or is no record at all."""
    if missing := sorted(set(fields) - mapping(record).keys()):
        yield f"{named} lacks {', '.join(missing)}, which every run of its format records"


def _of_test(run: StoredRun) -> Iterator[str]:
    test, demands = run.test, run.demands
    began = any(phase.get("name") == "main" for phase in map(mapping, sequence(run.outcome.get("phases"))))
    yield from _without(test, OF_TEST if began else OF_TEST - {"schedule"}, TEST)
    stated = test.get(VERSION_OF_GENERATORS)
    if demands.dealt is not None and VERSION_OF_GENERATORS in test and stated != demands.generators:
        yield (
            f"version {stated!r:.20} of the generators dealt the operations, and this is version "
            f"{demands.generators}: what clients had to invoke is not known"
        )
    if one_clock(test):
        return
    clocks = mapping(test.get("clocks"))
    for node in demands.servers:
        if not 0 <= number(mapping(clocks.get(node)).get("error_ns"), -1) <= CLOCK_ERROR_NS_MAX:
            yield f"{TEST} does not say how far the clock of {node} is ahead, within {CLOCK_ERROR_NS_MAX / 1e9:g} s"


def _of_outcome(run: StoredRun) -> Iterator[str]:
    if not run.outcome:
        return  # the run was broken off, which `evidence` reports
    yield from _without(run.outcome, OF_OUTCOME, OUTCOME)
    for death in sequence(run.outcome.get("deaths")):
        yield from _without(death, OF_A_DEATH, f"a death in {OUTCOME}")


def _of_faults(run: StoredRun) -> Iterator[str]:
    for record in run.faults:
        named = f"fault {mapping(record.get('card')).get('number')} of {FAULTS}"
        yield from _without(record, OF_A_FAULT, named)
        yield from _without(record.get("card"), OF_A_CARD, f"the card of {named}")
        for when in ("held", "healed"):
            yield from _without(mapping(record.get("ordered")).get(when), OF_AN_ORDER, f"the order of {named}")
        yield from _first(_without(m, OF_A_MEASUREMENT, f"a measurement of {named}") for m in _measured(record))


def _measured(record: Mapping[str, Any]) -> list[Any]:
    return sequence(record.get("measured"))


def _of_copies(run: StoredRun) -> Iterator[str]:
    for row in run.copies_index:
        named = f"copy {row.get('copy')} of {row.get('node')} in {COPIES_INDEX}"
        yield from _without(row, OF_A_COPY, named)
        if "taken_ns" in row and number(row["taken_ns"], -1) < 0:
            yield f"{named} does not say when it was taken"


def _of_code(run: StoredRun) -> Iterator[str]:
    """Code that is executed to judge the run, and that the manifest does not bind."""
    bound = mapping(bound_files(run.root))
    for folder in CODE_FOLDERS:
        if (run.root / folder).is_dir() and not any(name.startswith(f"{folder}/") for name in bound):
            yield f"{MANIFEST} binds no file of {folder}/, which decides how the run is judged"


def _first(clauses: Iterable[Iterator[str]]) -> Iterator[str]:
    """Only the first of these sentences.  A hundred measurements that lack a field would all give the same one."""
    found = next((clause for each in clauses for clause in each), None)
    if found is not None:
        yield found
