"""Goals of the bench, whole runs that it writes, its page about Kafka's clients, its writers against real servers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from bench import big_run, everything
from bench import kafka_compatibility as compatibility
from bench.everything import missed
from bench.instruments import figures
from bench.instruments import quorum_clusters as clusters
from bench.instruments.figures import BenchFigure, factor
from bench.kafka_compatibility import BROKERS, KAFKA, Result
from system_under_test.client import Request
from system_under_test.etcd_client import Gateway
from system_under_test.kraft.client import question
from system_under_test.kraft.wire.channel import Connection


@pytest.mark.parametrize(("unit", "goal", "here"), [("s", 3.0, 4.5), ("1/s", 300.0, 200.0), ("bytes", 7.0, 7.0)])
def test_a_slower_machine_has_longer_goals(
    unit: str, goal: float, here: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(figures, "factor", lambda: 1.5)
    file = tmp_path / "figures.jsonl"
    figures.Sheet(file).add("judging", 10, "events", value=here, unit=unit, goal=goal)
    assert json.loads(file.read_text())["goal"] == here
    (figure,) = figures.read(file)
    assert figure.reached


def test_the_kernel_takes_about_as_long_each_time() -> None:
    first = factor()
    factor.cache_clear()
    assert 0.2 < first / factor() < 5.0


def test_a_missed_goal_and_a_figure_twice_as_slow_as_the_last_time_are_listed() -> None:
    last = [BenchFigure("a", 1, "rows", 1.0, "s"), BenchFigure("b", 1, "rows", 1.0, "s")]
    reached = BenchFigure("a", 1, "rows", 3.0, "s", goal=4.0)
    assert missed([reached], last, slower=2.0) == []
    [line] = missed([BenchFigure("a", 1, "rows", 5.0, "s", goal=6.0)], last, slower=2.0)
    assert "last time 2, twice as long" in line
    [line] = missed([BenchFigure("c", 1, "rows", 5.0, "s", goal=4.0)], last, slower=2.0)
    assert "missed" in line and "not measured before" in line


@pytest.mark.parametrize("ratio", ["a / Porcupine", "a / Python and NumPy: --help"])
def test_a_ratio_that_has_grown_by_a_tenth_is_listed(ratio: str) -> None:
    last = [BenchFigure(ratio, 1, "rows", 0.5, "")]
    assert missed([BenchFigure(ratio, 1, "rows", 0.54, "")], last, slower=2.0) == []
    [line] = missed([BenchFigure(ratio, 1, "rows", 0.56, "")], last, slower=2.0)
    assert line.endswith("last time 0.5, a tenth more")


def test_kept_figures_are_those_of_the_machine_that_goals_were_set_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everything, "KEPT", tmp_path / "last.jsonl")
    everything.keep([BenchFigure("a", 1, "rows", 3.0, "s", goal=4.0), BenchFigure("m", 1, "rows", 2.0, "GB")], 2.0)
    everything.keep([BenchFigure("a", 2, "rows", 8.0, "s")], 2.0)
    kept = {(one.figure, one.size): one.value for one in figures.read(tmp_path / "last.jsonl")}
    assert kept == {("a", 1): 1.5, ("m", 1): 2.0, ("a", 2): 4.0}


def test_the_page_counts_and_names_each_result_without_what_changes_each_time() -> None:
    made = compatibility.page(
        [
            Result(compatibility.LIBRDKAFKA, "0063", "passed"),
            Result("kcat", "-L", "failed", "127.0.0.1:4711 | of rnd0123456789abcdef"),
        ]
    )
    assert "| librdkafka | its own tests in C, crate rdkafka-sys 4.10.0+2.12.1 | 1 | 0 | 0 |" in made
    assert "| kcat | `-L` | a broker \\| of rnd… |" in made


def test_the_first_failure_of_librdkafkas_runner_is_the_reason() -> None:
    output = b'x\n\x1b[31m### Test "0081" failed at a.c:1 ###\nResource 1: got 42\nmore'
    assert compatibility._why(output) == "Resource 1: got 42"
    assert compatibility._why(b"first\nlast\n") == "last"


def test_a_suite_that_is_unknown_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert compatibility.main(["--only", "java"]) == 3
    assert "there is no suite 'java'" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("suite", compatibility.SUITES)
def test_no_test_of_administration_fails(suite: str) -> None:
    assert len(compatibility.ADMIN) > 10
    assert compatibility.main(["--only", suite]) == 0


def test_a_test_without_the_same_outcome_on_both_clusters_is_named() -> None:
    found = {
        KAFKA: [Result("s", "same", "passed"), Result("s", "other", "passed"), Result("s", "neither", "failed", "why")],
        BROKERS: [Result("s", "same", "passed"), Result("s", "other", "skipped"), Result("s", "neither", "failed")],
    }
    assert compatibility.differing(found) == [("s", "other")]
    found[BROKERS].append(Result("s", "only here", "passed"))
    assert compatibility.differing(found) == [("s", "other"), ("s", "only here")]
    lines = compatibility.page_of_brokers(found, ["s"]).splitlines()
    assert "| s | 2 1 0 | 2 1 1 |" in lines
    assert "| s | `other` | passed, skipped |  |" in lines
    assert "| s | `only here` | not run, passed |  |" in lines
    assert "| s | `neither` | failed, failed | why |" in lines
    assert not [line for line in lines if "`same`" in line]


@pytest.mark.parametrize("wrong", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_files_of_nodes_are_judged_as_they_were_meant(wrong: bool, tmp_path: Path) -> None:
    """Files as nodes leave them are those that `analyze` reads."""
    big_run.measure(tmp_path / "run", 20_000, wrong, figures.Sheet(None), as_user=True)


def _with(cluster: clusters.QuorumCluster, test: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        cluster.start(1)
        leader = await cluster.leader()
        await cluster.prepare(leader, 3)
        await test(leader)

    try:
        asyncio.run(run())
    finally:
        cluster.close()


async def _write(cluster: clusters.QuorumCluster, leader: int) -> tuple[int, int]:
    """Return (acknowledged writes, three at least, number of calls of the marks in each load)."""
    latencies_s: list[float] = []
    calls: set[int] = set()
    while len(latencies_s) < 3:  # a short load on a busy machine may get no acknowledgement
        marks: list[None] = []
        writers = await cluster.writers(leader, 3)
        latencies_s += await clusters.write_for(writers, 0.0, 0.3, lambda marks=marks: marks.append(None))
        for writer in writers:
            writer.close()
        calls.add(len(marks))
    assert all(latency > 0 for latency in latencies_s)
    (marked,) = calls
    return len(latencies_s), marked


def test_acknowledged_writes_are_in_the_registers_of_kraft(tmp_path: Path) -> None:
    cluster = clusters.KRaft(tmp_path, 1)

    async def test(leader: int) -> None:
        written, marks = await _write(cluster, leader)
        assert written >= 3
        assert marks == 2
        connection = Connection(clusters.HOST, cluster.port(leader), "krucible-test")
        for number in range(3):
            answer = await connection.ask(question(Request("read", f"t{number}"), 1))
            assert len(answer.results[0].configs[0].value) == 13
        connection.close()

    _with(cluster, test)


def test_a_refused_write_ends_the_load(tmp_path: Path) -> None:
    cluster = clusters.KRaft(tmp_path, 1)

    async def test(leader: int) -> None:
        _, writer = await asyncio.get_running_loop().create_connection(
            lambda: clusters.KRaftWriter("no-such-topic"), clusters.HOST, cluster.port(leader)
        )
        with pytest.raises(clusters.WriteRefused):
            await clusters.write_for([writer], 0.0, PATIENCE_S, lambda: None)
        writer.close()

    _with(cluster, test)


@pytest.mark.skipif(clusters.etcd_version() is None, reason="etcd is not installed")
def test_acknowledged_writes_are_revisions_of_etcd(tmp_path: Path) -> None:
    cluster = clusters.EtcdCluster(tmp_path, 1)

    async def test(leader: int) -> None:
        written, _ = await _write(cluster, leader)
        gateway = Gateway(f"{clusters.HOST}:{cluster.port(leader)}")
        answer = gateway.post("/v3/kv/range", {"key": base64.b64encode(b"t1").decode()})
        gateway.close()
        assert written >= 3
        assert int(answer["header"]["revision"]) - 1 >= written
        assert len(base64.b64decode(answer["kvs"][0]["value"])) == 13

    _with(cluster, test)
