"""Metrics of a running test: what a scrape says, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from command_line import NO_SPARK, krucible
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE_S

from checkers.base.columns import HISTORY, events_to_table
from checkers.base.history import Event, Type
from harness.live import BadAddress, Metrics, RunStatus, address_of

ROOT = Path(__file__).parents[2]
READS = 'krucible_operation_seconds_count{f="read",outcome="ok"}'
EVENTS = (
    Event(0, 0, 1, Type.INVOKE, "read"),
    Event(1, 0, 2, Type.INVOKE, "write"),
    Event(2, 3_000_000, 1, Type.OK, "read"),
    Event(3, 3_000_000, -1, Type.OK, "inject-partition"),
    Event(4, 2_000_000_000, 2, Type.INFO, "write"),
    Event(5, 2_000_000_000, 3, Type.INVOKE, "read"),
)


def scraped(metrics: Metrics) -> tuple[str, dict[tuple[str, tuple[str, ...]], float]]:
    """The text of a scrape, and its samples by name and values of labels, in the order of the labels' names."""
    port, end = metrics.serve("127.0.0.1", 0)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).read().decode()
    finally:
        end()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return text, {(sample.name, tuple(v for _, v in sorted(sample.labels.items()))): sample.value for sample in samples}


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics("kraft", "register")
    for batch in events_to_table(EVENTS).cast(HISTORY).to_batches():
        metrics.hand_over(batch)
    metrics.show(RunStatus("a run", "", "main", 5.0, 120.0, kinds=("partition",), leader="n2", epoch=7, violations=1))
    return metrics


def test_a_scrape_counts_operations_by_function_and_outcome(metrics: Metrics) -> None:
    _, samples = scraped(metrics)
    count = "krucible_operation_seconds_count"
    assert (samples[count, ("read", "ok")], samples[count, ("write", "info")]) == (1, 1)
    assert samples["krucible_operations_invoked_total", ("read",)] == 2
    bucket = "krucible_operation_seconds_bucket"
    assert samples[bucket, ("read", "0.0025", "ok")] == 0 and samples[bucket, ("read", "0.005", "ok")] == 1
    assert samples["krucible_operation_seconds_sum", ("write", "info")] == 2.0
    assert samples["krucible_faults_in_force", ("partition",)] == samples["krucible_leader", ("n2",)] == 1
    assert (samples["krucible_epoch", ()], samples["krucible_online_violations", ()]) == (7, 1)


def test_what_ended_is_no_longer_there(metrics: Metrics) -> None:
    metrics.show(RunStatus("a run", "", "recovery", 9.0, leader="n3", epoch=8))
    _, samples = scraped(metrics)
    assert samples["krucible_faults_in_force", ("partition",)] == 0
    assert ("krucible_leader", ("n2",)) not in samples and samples["krucible_leader", ("n3",)] == 1
    assert {labels for name, labels in samples if name == "krucible_phase"} == {("recovery",)}


def test_the_dashboard_asks_for_metrics_that_a_run_serves(metrics: Metrics) -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for t in panel["targets"]
        for name in re.findall(r"krucible_\w+", t["expr"])
    }
    served = {name for name, _ in scraped(metrics)[1]}
    documented = set(re.findall(r"`(krucible_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert asked and asked <= served
    assert documented - {"krucible_operation_seconds"} <= served and "krucible_operation_seconds_bucket" in served


@pytest.mark.parametrize(
    ("text", "address"), [(":9100", ("127.0.0.1", 9100)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:9", ("::1", 9))]
)
def test_an_address_without_a_host_is_loopback(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", "9100x", "host", ":", ":70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress, match="is not an address; give one such as :9100"):
        address_of(text)


RUN = ["run", "--subject", "canary", "--nemesis", "none", *NO_SPARK]


def test_an_address_of_another_machine_is_named_before_there_is_a_run(tmp_path: Path) -> None:
    refused = krucible(*RUN, "--metrics", "192.0.2.1:9", "--results", str(tmp_path))
    assert (refused.returncode, refused.stderr) == (
        3,
        "krucible: --metrics 192.0.2.1:9: Cannot assign requested address\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["refused.jsonl"]


def test_a_run_serves_them(tmp_path: Path) -> None:
    for time_limit_s in (3, 12, 48):  # on a busy machine a short run may end before it is queried
        seen = last_scrape_of_a_run(tmp_path, time_limit_s)
        if READS in seen:
            break
    assert 'krucible_run_info{system="canary",workload="register"} 1.0' in seen
    assert READS in seen
    assert not list((tmp_path / ".live").glob("*"))


def last_scrape_of_a_run(results: Path, time_limit_s: int) -> str:
    """The first one that shows an answered read, or the last one of the run."""
    words = ["--time-limit", str(time_limit_s), "--rate", "200", "--seed", "1", "--results", str(results)]
    command = [sys.executable, "-m", "harness", *RUN, *words, "--metrics", ":0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("metrics: "))
        seen = ""
        while process.poll() is None and READS not in seen:
            try:
                seen = urllib.request.urlopen(line.split()[1], timeout=PATIENCE_S).read().decode()
            except OSError:
                break  # the run has ended
        process.communicate()
    return seen
