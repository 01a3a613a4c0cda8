"""Questions over all runs, on DuckDB and on a real Spark: both answer the same, and neither does more than read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from facts_of_runs import BEGIN, facts, violation, with_rows

from checkers.spark.session import SparkJudge
from harness.lake.facts import RunFacts
from harness.lake.lake import Lake
from harness.lake.sql import QUESTIONS, WrongQuery, ask
from harness.lake.tables import RUNS, VIOLATIONS


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> SparkJudge | None:
    """Who answers: DuckDB in this process, or a Spark."""
    return None if request.param == "duckdb" else request.getfixturevalue("spark")


def run(number: int, day: int, rows: Mapping[str, Sequence[Mapping[str, Any]]], **columns: Any) -> RunFacts:
    """A run with rows in other tables."""
    one = facts(number, day, **columns)
    started = one.rows[RUNS]["started"][0].as_py()
    return RunFacts(
        one.run, one.date, one.system, {**with_rows(one.run, started, one.system, rows).rows, RUNS: one.rows[RUNS]}
    )


def fault(number: int, injected_s: int) -> dict[str, Any]:
    return {"number": number, "kind": "partition", "name": "leader", "injected_ns": injected_s * 10**9}


def second(number: int, count: int, p50_ms: float, faults: str) -> dict[str, Any]:
    return {
        "second": number, "f": "read", "outcome": "ok", "count": count, "p50_ms": p50_ms, "p99_ms": 9.0, "max_ms": 50.0,
        "faults": faults,
    }  # fmt: skip


A, B, C = "a" * 40, "b" * 40, "c" * 40
OLD, UNDER_NONE = "0000000a", "0000000b"
CRITERION = {"name": "ok operations", "value": 1.0, "least": 9.0, "met": False, "demanded": True}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("results") / "lake")
    seen = {"violations": [violation(OLD)], "faults": [fault(1, 4)]}
    early = {"violations": [violation(UNDER_NONE, moment_ns=10**9, preceding="election")], "faults": [fault(1, 4)]}
    seconds = [second(0, 100, 1.0, "none"), second(1, 300, 3.0, "none"), second(2, 10, 40.0, "partition")]
    for one in (
        run(1, 0, seen, verdict="invalid", revision=A),
        run(2, 0, {}, revision=A),
        run(3, 8, {"operations": seconds, "costs": [{"checker": "linearizability", "seconds": 1.5}]}, revision=B),
        run(4, 9, {}, revision=C),
        run(5, 9, early, system="etcd", verdict="invalid", revision=C),
        run(6, 9, {"criteria": [CRITERION]}, system="etcd", vacuous=True, verdict="unknown", revision=C),
        run(7, 9, {"coverage": [{"what": "situation", "name": n, "looks": k} for n, k in (("torn", 0), ("split", 2))]}),
    ):
        lake.append(one)
    return lake


def asked(lake: Lake, name: str, engine: SparkJudge | None) -> list[Mapping[str, Any]]:
    return ask(lake, QUESTIONS[name].sql, engine)[1]


def test_a_violation_before_every_fault_is_unprovoked(lake: Lake, engine: SparkJudge | None) -> None:
    [row] = asked(lake, "unprovoked", engine)
    assert (row["system"], row["symptom"], row["at_s"]) == ("etcd", UNDER_NONE, 1.0)


def test_a_symptom_has_a_first_and_a_last_time_and_a_trend(lake: Lake, engine: SparkJudge | None) -> None:
    old, new = sorted(asked(lake, "symptoms", engine), key=lambda row: row["symptom"])
    assert (old["symptom"], old["runs"], old["last_7_days"], old["the_7_before"]) == (OLD, 1, 0, 1)
    assert (new["symptom"], new["runs"], new["last_7_days"], new["the_7_before"]) == (UNDER_NONE, 1, 1, 0)
    assert old["first_seen"] == (BEGIN + timedelta(minutes=1)).replace(tzinfo=None) == old["last_seen"]


def test_latencies_are_weighted_by_operations(lake: Lake, engine: SparkJudge | None) -> None:
    calm, cut = asked(lake, "latency", engine)
    assert (calm["faults"], calm["operations"], calm["p50_ms"]) == ("none", 400, 3.0)
    assert (cut["faults"], cut["operations"], cut["p50_ms"], cut["max_ms"]) == ("partition", 10, 40.0, 50.0)
    assert cut["week"] == date(2026, 1, 5)


def test_what_preceded_a_symptom_is_counted(lake: Lake, engine: SparkJudge | None) -> None:
    rows = {(row["system"], row["preceding"]): row["runs"] for row in asked(lake, "before", engine)}
    assert rows == {("kraft", "partition injected"): 1, ("etcd", "election"): 1}


def test_a_vacuous_run_counts_with_what_it_lacked(lake: Lake, engine: SparkJudge | None) -> None:
    rows = {(row["system"], row["runs"]): row for row in asked(lake, "vacuity", engine)}
    assert rows["etcd", 2]["percent"] == 50.0 and rows["etcd", 2]["missed_most"] == "ok operations"
    assert sum(row["vacuous"] for row in rows.values()) == 1


def test_a_symptom_that_later_revisions_do_not_show_is_perhaps_fixed(lake: Lake, engine: SparkJudge | None) -> None:
    fails, fixed = sorted(asked(lake, "fixed", engine), key=lambda row: str(row["state"]))
    assert (fixed["symptom"], fixed["state"], fixed["runs_since"]) == (OLD, "fixed, perhaps", 2)
    assert (fixed["last_bad_revision"], fixed["good_since_revision"]) == (A[:12], B[:12])
    assert (fixed["seen_in"], fixed["of_runs"]) == (1, 5)
    assert (fails["symptom"], fails["system"], fails["state"]) == (UNDER_NONE, "etcd", "fails")


def test_what_no_fault_met_is_named(lake: Lake, engine: SparkJudge | None) -> None:
    assert [(row["what"], row["name"]) for row in asked(lake, "unmet", engine)] == [("situation", "torn")]
    assert [row["checker"] for row in asked(lake, "costs", engine)] == ["linearizability"]


def test_a_statement_of_ones_own_is_answered_and_a_wrong_one_refused(lake: Lake, engine: SparkJudge | None) -> None:
    columns, rows = ask(lake, "SELECT system, count(*) AS runs FROM runs GROUP BY system ORDER BY system", engine)
    assert (list(columns), rows) == (
        ["system", "runs"],
        [{"system": "etcd", "runs": 2}, {"system": "kraft", "runs": 5}],
    )
    with pytest.raises(WrongQuery, match="nope"):
        ask(lake, "SELECT nope FROM runs", engine)


REFUSED = (
    "DROP TABLE runs",
    "SET threads = 1",
    "SET spark.sql.shuffle.partitions = 1",
    "CREATE TABLE mine AS SELECT * FROM runs",
    "CREATE OR REPLACE TEMP VIEW runs AS SELECT 1",
    "INSERT INTO runs SELECT * FROM runs",
    "INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT * FROM runs",
    "WITH some AS (SELECT * FROM runs) INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT * FROM some",
    "WITH some AS (INSERT INTO runs SELECT * FROM runs RETURNING *) SELECT * FROM some",
    "FROM runs INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT *",
    """EXECUTE IMMEDIATE "INSERT OVERWRITE DIRECTORY '{folder}' USING csv SELECT 1" """,
    "SELECT TRANSFORM(run) USING 'touch {folder}; cat' AS (x) FROM runs",
    "SELECT java_method('java.lang.System', 'getProperty', 'user.home')",
    "SELECT * FROM (SELECT 1 WHERE reflect('java.lang.System', 'setProperty', 'a', 'b') = 'c')",
    "SELECT run FROM runs WHERE run IN (SELECT java_method('java.lang.System', 'getProperty', 'user.home'))",
    "SELECT transform(kinds, k -> java_method('java.lang.System', 'getProperty', k)) FROM runs",
    "SELECT IDENTIFIER('java_method')('java.lang.System', 'getProperty', 'user.home')",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "SELECT * FROM range(length('${{env:HOME}}')) JOIN text.`${{env:HOME}}` ON true",
    "SELECT input_file_name() FROM runs",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM runs WHERE EXISTS (SELECT * FROM text.`/etc/passwd`)",
    "COPY runs TO '{folder}'",
    "COPY (SELECT * FROM runs) TO '{folder}' (FORMAT csv)",
    "ATTACH '{folder}' AS other",
    "PRAGMA database_list",
    "INSTALL httpfs",
    "CALL duckdb_settings()",
    "CHECKPOINT",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_parquet('{folder}/*.parquet')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('runs')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM duckdb_settings",
    "SELECT * FROM (WITH sqlite_master AS (SELECT 1) SELECT * FROM sqlite_master) AS a, sqlite_master",
    "SELECT getenv('HOME')",
    "SELECT list_transform(kinds, lambda k: getenv(k)) FROM runs",
    "SELECT run FROM runs ORDER BY getenv('HOME')",
    "SELECT run FROM runs LIMIT (SELECT count(*) FROM read_text('/etc/passwd'))",
    "SELECT 1; SELECT 2",
    "SELECT 1 /* ; */; DROP TABLE runs -- the end",
    "DESCRIBE runs",
    "EXPLAIN ANALYZE SELECT 1",
    "",
)


@pytest.mark.parametrize("statement", REFUSED)
def test_a_statement_that_does_more_than_read_the_lake_is_refused(
    lake: Lake, engine: SparkJudge | None, tmp_path: Path, statement: str
) -> None:
    folder = tmp_path / "written"
    with pytest.raises(WrongQuery):
        ask(lake, statement.format(folder=folder), engine)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("statement", "first"),
    [
        ("SELECT count(*) AS n FROM runs -- ; DROP TABLE runs", 7),
        ("/* COPY */ SELECT max(length(verdict)) AS n FROM Runs", 7),
        ("SELECT filter(kinds, k -> upper(k) = 'NONE OF THESE') AS n FROM runs LIMIT 1", []),
        ("WITH a AS (SELECT run FROM runs), b AS (SELECT * FROM a) SELECT count(DISTINCT b.run) AS n FROM a, b", 7),
        ("SELECT n FROM (SELECT row_number() OVER (ORDER BY run) AS n FROM runs) ORDER BY n LIMIT 1", 1),
        ("SELECT sum(n) AS n FROM (SELECT 3 AS n UNION ALL SELECT 4)", 7),
        ("SELECT count(*) AS n FROM runs WHERE EXISTS (SELECT 1 FROM faults f WHERE f.run = runs.run)", 2),
        ("SELECT CASE WHEN 1 BETWEEN 0 AND 2 THEN CAST('7' AS INT) END AS n FROM runs LIMIT 1", 7),
        ("SELECT system, count(*) AS n FROM runs GROUP BY system HAVING count(*) > 2", 5),
        ("SELECT '${env:HOME}' AS n", "${env:HOME}"),
    ],
)
def test_a_query_over_the_tables_of_the_lake_is_answered(
    lake: Lake, engine: SparkJudge | None, statement: str, first: Any
) -> None:
    _, [row] = ask(lake, statement, engine)
    assert row["n"] == first


def test_a_column_that_an_older_lake_lacks_is_null(lake: Lake, engine: SparkJudge | None, tmp_path: Path) -> None:
    old = Lake(tmp_path / "lake")
    old.append(facts(1))
    [file] = old.files(RUNS)
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["loop_late_p99_ms"]), file)
    assert ask(old, "SELECT loop_late_p99_ms AS late FROM runs", engine)[1] == [{"late": None}]
    assert old.read(RUNS)["loop_late_p99_ms"].to_pylist() == [None]


def test_an_empty_lake_is_refused(engine: SparkJudge | None, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="there is no run in the lake"):
        ask(Lake(tmp_path / "lake"), "SELECT 1 FROM runs", engine)


def test_a_lake_that_calls_symptoms_signatures_stays_readable(tmp_path: Path, engine: SparkJudge | None) -> None:
    lake = Lake(tmp_path / "lake")
    for number, symptom in ((1, OLD), (2, UNDER_NONE)):
        lake.append(run(number, number, {"violations": [violation(symptom)]}, verdict="invalid", symptom=symptom))
    for table in (RUNS, VIOLATIONS):
        (older, _) = sorted(lake.files(table))
        rows = pq.read_table(older, partitioning=None)
        pq.write_table(rows.rename_columns({"symptom": "signature"}), older)
        expected = [{"symptom": OLD}, {"symptom": UNDER_NONE}]
        assert sorted(lake.read(table, ["symptom"]).to_pylist(), key=lambda row: row["symptom"]) == expected
        assert ask(lake, f"SELECT symptom FROM {table} ORDER BY run", engine)[1] == expected
