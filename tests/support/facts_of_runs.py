"""Facts of runs that never were: many of them at once, as the lake holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa

from harness.lake.facts import RunFacts
from harness.lake.past import PastRun
from harness.lake.tables import RUNS, TABLES

SYSTEMS, KINDS = ("kraft", "etcd", "canary"), ("partition", "kill", "pause", "disk")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def facts(number: int, day: int = 0, system: str = "kraft", **run: Any) -> RunFacts:
    """One run.  run: columns of the table of runs that differ from those of a valid run."""
    started = BEGIN + timedelta(days=day, minutes=number)
    name = f"{started:%Y%m%dT%H%M%SZ}-{number}"
    row = {
        "path": f"test-partition/{name}", "test": "test-partition", "started": started, "judged": started,
        "workload": "register", "kinds": ["partition"], "backend": "namespaces", "nodes": 5, "rate_hz": 200.0,
        "keys": 10, "time_limit_s": 60.0, "seed": number, "revision": "a" * 40, "dirty": False, "verdict": "valid",
        "exit_code": 0, "summary": "Valid.", "violations": 0, "vacuous": False, "operations": 12_000, "ok": 11_000,
        "fail": 900, "info": 100, "p50_ms": 2.0, "p99_ms": 30.0, "faults": 4, "faults_dealt": 4, "elections": 3,
        "duration_s": 75.0, "judging_s": 2.0, "loop_late_p99_ms": 3.0, **run,
    }  # fmt: skip
    return with_rows(name, started, system, {RUNS: [row]})


def with_rows(name: str, started: datetime, system: str, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> RunFacts:
    """rows: table -> its rows, without the column `run`."""
    filled = {
        table: pa.Table.from_pylist([{"run": name, **row} for row in rows.get(table, ())], schema=schema)
        for table, schema in TABLES.items()
    }
    return RunFacts(name, f"{started:%Y-%m-%d}", system, filled)


def violation(symptom: str = "6b96ad0f", **fields: Any) -> dict[str, Any]:
    """A row of the table of violations."""
    return {
        "place": 0, "symptom": symptom, "words": "stale read under partition of the leader",
        "checker": "linearizability", "kind": "stale read", "shape": "read", "faults": "partition", "roles": "leader",
        "moment_ns": 5 * 10**9, "preceding": "partition injected", "summary": "n3 answered with 5.", **fields,
    }  # fmt: skip


def many(count: int, days: int, seed: int = 1, seconds: int = 20) -> list[RunFacts]:
    """Runs spread over so many days; about one of fifty is invalid, one of twenty vacuous."""
    rng = Random(seed)
    found = []
    for number in range(count):
        day, system = number * days // count, rng.choice(SYSTEMS)
        kind, bad, vacuous = rng.choice(KINDS), rng.random() < 0.02, rng.random() < 0.05
        verdict = "invalid" if bad else "unknown" if vacuous else "valid"
        symptom = f"{rng.randrange(5):08x}" if bad else None
        revision = f"{day // 7:040x}"
        one = facts(
            number, day, system, kinds=[kind], verdict=verdict, symptom=symptom, vacuous=vacuous,
            violations=int(bad), revision=revision,
        )  # fmt: skip
        started = one.rows[RUNS]["started"][0].as_py()
        rows = dict(one.rows)
        made: dict[str, list[dict[str, Any]]] = {
            "violations": [violation(symptom, faults=kind)] if symptom else [],
            "faults": [
                {"number": n, "kind": kind, "name": "leader", "achieved": "installed", "reason": "", "words": kind,
                 "nodes": ["n1"], "leader": "n1", "role": "leader", "injected_ns": n * 10**10,
                 "healed_ns": n * 10**10 + 5 * 10**9, "apply_ms": 4.0}
                for n in range(1, 5)
            ],
            "operations": [
                {"second": s, "f": f, "outcome": "ok", "count": 100, "p50_ms": 2 + rng.random(),
                 "p99_ms": 20 + 10 * rng.random(), "max_ms": 50.0, "faults": kind if s % 10 < 5 else "none"}
                for s in range(seconds) for f in ("read", "write")
            ],
            "elections": [{"time_ns": 10**9, "node": "n1", "epoch": 1, "faults": "none"}],
            "criteria": [
                {"name": "ok operations", "value": 11_000.0, "least": 1000.0, "met": not vacuous, "demanded": True}
            ],
            "coverage": [{"what": "situation", "name": "torn tail", "looks": 0}],
            "costs": [{"checker": "linearizability", "verdict": verdict, "seconds": 0.5}],
        }  # fmt: skip
        rows |= {**with_rows(one.run, started, system, made).rows, RUNS: one.rows[RUNS]}
        found.append(RunFacts(one.run, one.date, system, rows))
    return found


T0 = datetime(2026, 11, 1, tzinfo=UTC)


def past(day: int, *symptoms: str, test: str = "partition", good: bool | None = None, planted: bool = False) -> PastRun:
    bad = bool(symptoms) if good is None else not good
    verdict = "invalid" if bad else "valid"
    named = {one: f"words of {one}" for one in symptoms}
    of = ("kraft", "register", test, "")
    return PastRun(f"run-{day}", T0 + timedelta(days=day), of, verdict, not bad, planted, named)
