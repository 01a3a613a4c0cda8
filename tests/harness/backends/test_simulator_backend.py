"""The harness' own conductor, nemeses and workloads over simulated machines.

One seed decides everything: a fresh process with another hash seed makes the same run, row by row.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from journals import recorded
from rich.console import Console

from checkers.base.columns import read_stream
from checkers.base.results import NO_RESULTS, RESULTS, as_object, read_results
from checkers.base.stored_run import StoredRun, node_files
from checkers.record.run_record import JOURNAL, Begun, RunRecord
from harness.backends.simulator import damage_machine, shown
from harness.judge.judge_run import judge
from harness.registry import check_names, load_subject
from harness.run.clock import clock_of
from harness.run.conductor import Conductor
from harness.run.context import prepare
from harness.run.recorder import RunFolder
from harness.spec import Spec, WrongSpec
from harness.terminal.progress import Progress
from simulation.loop import SimulatedLoop
from simulation.machine import Machine
from simulation.network import SimulatedNetwork

_MISSING = "nothing"


def first_difference(first: Path, second: Path) -> str:
    """The first difference of two run folders, with its row and both contents; "" if there is none.

    Looked at, in this order: the history, the trace of every node, the journal, the schedule, every copied file,
    and the verdict of every checker where both were judged.  What says when and where a run was made is left out."""
    return next(_differences(first, second), "")


def _differences(first: Path, second: Path) -> Iterator[str]:
    yield from _of_rows("history.arrows", _history(first), _history(second))
    for name in _names(first, second, "trace/*.jsonl"):
        yield from _of_rows(name, _lines(first / name), _lines(second / name))
    yield from _of_rows(JOURNAL, _journal(first), _journal(second))
    yield from _of_rows("schedule.json", _lines(first / "schedule.json"), _lines(second / "schedule.json"))
    for name in _names(first, second, "nodes/*/copies/**/*"):
        if (first / name).is_file() and _bytes(first / name) != _bytes(second / name):
            yield f"{name}: the copies hold different bytes"
    yield from _of_rows(RESULTS, _verdicts(first), _verdicts(second))


def _of_rows(name: str, first: Sequence[object], second: Sequence[object]) -> Iterator[str]:
    for number, (one, other) in enumerate(zip_longest(first, second, fillvalue=_MISSING)):
        if one != other:
            yield f"{name}, row {number}: {one} in the one, {other} in the other"


def _history(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_stream(root / "history.arrows").to_pylist()
    return rows


def _journal(root: Path) -> Sequence[object]:
    return [entry for entry in RunRecord(root).journal if not isinstance(entry.happened, Begun)]


def _verdicts(root: Path) -> list[str]:
    results = read_results(root) or NO_RESULTS
    return [f"{name}: {found.verdict}" for name, found in sorted(results.checkers.items())]


def _names(first: Path, second: Path, pattern: str) -> list[str]:
    return sorted({str(path.relative_to(root)) for root in (first, second) for path in root.glob(pattern)})


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def conducted(results: Path, spec: Spec) -> RunFolder:
    """A run on virtual time, not yet judged."""
    loop = SimulatedLoop()
    clock = clock_of(loop, datetime.now(UTC))
    folder = RunFolder.create(results, spec)
    progress = Progress(Console(file=io.StringIO()), clock.monotonic_s)
    try:
        loop.run(Conductor(prepare(spec, "simulator", folder, progress, clock)).run())
    finally:
        progress.stop()
    return folder


MAIN_S = 12.0


def spec(nemesis: str, seed: int = 1) -> Spec:
    return Spec(
        nemesis=nemesis,
        backend="simulator",
        nodes=3,
        rate_hz=30.0,
        keys=3,
        seed=seed,
        time_limit_s=MAIN_S,
        online=False,
    )


def test_a_partition_is_in_force_and_the_run_holds_every_invariant(tmp_path: Path) -> None:
    folder = conducted(tmp_path, spec("partition"))
    outcome, faults = recorded(folder.root, "outcome"), recorded(folder.root, "faults")
    phases = {phase["name"]: (phase["end_ns"] - phase["start_ns"]) / 1e9 for phase in outcome["phases"]}
    assert phases["main"] >= MAIN_S - 1 and outcome["recovery"]["recovered"]
    assert faults and all(fault["achieved"] == "installed" for fault in faults)
    found = as_object(judge(folder.root, None, lambda _: None, report=False))["checkers"]
    assert found["linearizability"]["verdict"] == found["trace-validation"]["verdict"] == "valid"
    assert not [name for name, verdict in found.items() if verdict["verdict"] == "invalid"]


@pytest.mark.parametrize("nemesis", ["partition", "kill,damage"])
def test_brokers_on_nodes_of_their_own_are_judged_as_the_others(tmp_path: Path, nemesis: str) -> None:
    folder = conducted(tmp_path, replace(spec(nemesis), subject="kraft-apart", nodes=5, time_limit_s=20.0))
    outcome, faults = recorded(folder.root, "outcome"), recorded(folder.root, "faults")
    assert outcome["recovery"]["recovered"], outcome["recovery"]
    assert any(fault["achieved"] == "installed" for fault in faults)
    found = as_object(judge(folder.root, None, lambda _: None, report=False))["checkers"]
    of_brokers = ("broker-incarnations", "partition-chain", "broker-sessions")
    for name in ("linearizability", "trace-validation", *of_brokers, "recovery"):
        assert found[name]["verdict"] == "valid", (name, found[name]["reason"])
    assert not [name for name, verdict in found.items() if verdict["verdict"] == "invalid"]
    trace = map(json.loads, (folder.root / "trace" / "n5.jsonl").open())
    assert {row["detail"] for row in trace if row.get("event") == "voters"} == {"n1 n2 n3"}
    table = node_files(StoredRun(folder.root).cluster)["n1"]
    registered = pq.read_table(table, columns=["kind", "about"], partitioning=None).to_pylist()
    assert {row["about"] for row in registered if row["kind"] == "register broker"} == {"broker 4", "broker 5"}


@pytest.mark.parametrize("bug", ["session-not-renewed", "failover-forgets-sessions"])
def test_mistakes_of_fencing_are_found_in_a_run(tmp_path: Path, bug: str) -> None:
    folder = conducted(tmp_path, replace(spec("kill"), subject="kraft-brokers", bug=bug, time_limit_s=30.0))
    found = as_object(judge(folder.root, None, lambda _: None, report=False))["checkers"]
    planted = load_subject("kraft-brokers").bugs[bug]
    assert planted.found_by == "broker-sessions" and found["broker-sessions"]["verdict"] == "invalid"
    assert found["broker-sessions"]["witness"][0]["kind"] in planted.witness_kinds


@pytest.mark.parametrize("nemesis", ["kill", "pause", "power", "disk", "damage", "clock", "packets"])
def test_every_kind_of_fault_is_achieved_as_its_probes_measure(tmp_path: Path, nemesis: str) -> None:
    folder = conducted(tmp_path, spec(nemesis))
    outcome, faults = recorded(folder.root, "outcome"), recorded(folder.root, "faults")
    assert outcome["recovery"]["recovered"], outcome["recovery"]
    became = [(fault["words"], fault["achieved"], fault["reason"]) for fault in faults]
    assert any(achieved == "installed" for _, achieved, _ in became), became
    assert not [fault for fault in became if fault[1] == "indeterminate"], became
    assert all(death["ordered"] for death in outcome["deaths"]) or nemesis == "disk", outcome["deaths"]


def test_logs_that_are_cut_are_copied_so_often_that_the_copies_show_every_entry(tmp_path: Path) -> None:
    """No fault, so no heal: only the regular copies show what the nodes cut behind their snapshots."""
    often = replace(spec("none"), subject="kraft-snapshots", rate_hz=200.0, time_limit_s=18.0)
    folder = conducted(tmp_path, often)
    judged = as_object(judge(folder.root, None, lambda _: None, report=False))["checkers"]
    starts = [row["log_start"] for row in StoredRun(folder.root).copies if row["when"] == "final"]
    assert starts and min(starts) > 200, starts
    by_log = {name: judged[name]["verdict"] for name in ("history-against-log", "log-order", "answers-from-commits")}
    assert set(by_log.values()) == {"valid"}, by_log


@pytest.mark.parametrize("how", ["flip", "truncate", "wipe"])
def test_damage_is_what_it_says(how: str) -> None:
    loop = SimulatedLoop()
    machine = Machine("n1", loop, SimulatedNetwork(loop, Random(1)), 1)
    with pytest.raises(FileNotFoundError):
        damage_machine(machine, "*.log", "flip", 7)
    file = machine.disk.open("0.log")
    file.write_at(0, b"content")
    file.fsync()
    machine.disk.fsync_dir("")
    done = damage_machine(machine, "*.log", how, 7)
    content = machine.disk.crash("lose", Random(1)).files().get("0.log", b"")
    changed = sum((a ^ b).bit_count() for a, b in zip(content, b"content", strict=False))
    assert {"flip": (7, 1), "truncate": (len(content), 0), "wipe": (0, 0)}[how] == (len(content), changed)
    assert len(content) < 7 or how == "flip"
    told = shown(done, machine)
    assert told["before"] != told["after"] == told["now"]


def test_a_system_that_is_no_asyncio_program_is_refused_in_one_sentence() -> None:
    with pytest.raises(WrongSpec, match=r"^subject etcd cannot run on backend 'simulator': only an asyncio program"):
        check_names(Spec(subject="etcd", backend="simulator"))


SPEC = Spec(nemesis="partition,kill,power", backend="simulator", nodes=3, rate_hz=40.0, keys=3, time_limit_s=12.0)
"""Online checks are on: they must not disturb what they watch."""


def in_a_fresh_process(results: Path, seed: int, hash_seed: int) -> Path:
    program = [sys.executable, __file__, str(results), json.dumps({**SPEC.to_json(), "seed": seed})]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": f"{Path.cwd()}:tests/support"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The same seed under two hash seeds, and another seed."""
    results = tmp_path_factory.mktemp("results")
    return tuple(in_a_fresh_process(results, seed, hash_seed) for seed, hash_seed in ((5, 0), (5, 4711), (6, 0)))  # type: ignore[return-value]


def test_history_traces_faults_and_files_are_equal_byte_for_byte(runs: tuple[Path, Path, Path]) -> None:
    first, again, _ = runs
    assert first_difference(first, again) == ""
    assert RunRecord(first).faults, "faults took part"


def test_the_verdict_is_the_same_with_all_that_was_looked_at(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    copies = [shutil.copytree(root, tmp_path / str(number) / root.name) for number, root in enumerate(runs[:2])]
    found = [judge(root, None, lambda _: None, report=False) for root in copies]  # which seals it
    judged = [as_object(each)["checkers"] for each in found]
    told = ("verdict", "looked_at", "reason", "witness")
    verdicts = [{name: {part: found[part] for part in told} for name, found in checkers.items()} for checkers in judged]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["linearizability"]["looked_at"]["operations"] > 100
    assert not [name for name, found in verdicts[0].items() if found["verdict"] == "invalid"]


def test_another_seed_is_another_run(runs: tuple[Path, Path, Path]) -> None:
    first, _, other = runs
    assert first_difference(first, other).startswith("history.arrows, row ")


if __name__ == "__main__":
    print(conducted(Path(sys.argv[1]), Spec.from_json(json.loads(sys.argv[2]))).root)
