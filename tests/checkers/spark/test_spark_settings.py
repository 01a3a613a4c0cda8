"""Settings of Spark: which masters there are, where executors call back, and what a user may override."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from checkers.spark.java import SparkUnavailable
from checkers.spark.settings import await_master, cluster_settings, is_local, local_settings, problem_with


@pytest.mark.parametrize(
    "master",
    [
        "local", "local[2]", "local[*]", "local[*,4]", "local-cluster[2,1,1024]", "yarn", "k8s://https://10.0.0.1:6443",
        "spark://node-1.example:7077", "spark://10.0.0.1:7077,10.0.0.2:7077", "spark://[::1]:7077",
    ],
)  # fmt: skip
def test_masters_there_can_be(master: str) -> None:
    assert problem_with(master) == ""


@pytest.mark.parametrize(
    "master", ["", "node:7077", "spark://node", "spark://node:port", "spark://a:1,b", "local[]", "http://node:8080"]
)
def test_masters_there_cannot_be(master: str) -> None:
    assert "is no address of a Spark master; addresses look like spark://host:7077" in problem_with(master)


def test_only_what_runs_in_this_process_is_local() -> None:
    assert [is_local(m) for m in ("local", "local[*,4]", "local-cluster[1,1,1024]", "yarn", "spark://localhost:1")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_of_several_masters_one_has_to_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as answers, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        there, gone = (f"127.0.0.1:{s.getsockname()[1]}" for s in (answers, silent))
        await_master(f"spark://{gone},{there}")
        with pytest.raises(SparkUnavailable, match=rf"no Spark master answers at spark://{gone} .*Connection refused"):
            await_master(f"spark://{gone}")


def test_executors_call_back_where_the_master_sees_us() -> None:
    settings = cluster_settings("spark://127.0.0.1:7077", [], Path("/b/boot.py"), Path("/b/bundle.zip"))
    assert settings.defaults["spark.driver.host"] == "127.0.0.1"
    assert settings.fixed["spark.files"] == "/b/boot.py,/b/bundle.zip"
    assert "spark.driver.host" not in cluster_settings("yarn", [], Path("b"), Path("z")).defaults


def test_a_limit_on_the_memory_of_workers_reaches_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRUCIBLE_WORKER_MEMORY_BYTES", "1234")
    settings = cluster_settings("yarn", [], Path("b"), Path("z"))
    assert settings.fixed["spark.executorEnv.KRUCIBLE_WORKER_MEMORY_BYTES"] == "1234"


def test_inside_this_process_spark_listens_on_loopback_only() -> None:
    fixed = local_settings("local[*,4]", ["-Xlight"]).fixed
    assert {fixed["spark.driver.host"], fixed["spark.driver.bindAddress"]} == {"127.0.0.1"}
    assert fixed["spark.driver.extraJavaOptions"].split()[0] == "-Xlight"
