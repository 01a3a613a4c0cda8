"""A run whose faults would have no effect on the system is refused, in one sentence, before its nodes are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.record.faults import Card
from harness.run.refused_before_start import check_spec
from harness.spec import Spec, WrongSpec
from nemesis.catalog import KINDS
from nemesis.cluster import CLOCK
from nemesis.deck import schedule_json
from system_under_test.etcd.system import Etcd


@pytest.mark.parametrize("nemesis", ["clock", "partition,clock"])
def test_clock_faults_on_etcd_are_refused(nemesis: str) -> None:
    spec = Spec(subject="etcd", nemesis=nemesis)
    with pytest.raises(WrongSpec, match=rf"^--nemesis {nemesis} cannot be injected: etcd is written in Go") as refusal:
        check_spec(spec)
    assert "\n" not in str(refusal.value)


def test_a_schedule_with_a_clock_fault_is_refused_on_etcd(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(schedule_json([Card(1, "clock", "leader-ahead", 5.0, 10.0)], {}))
    spec = Spec(subject="etcd", nemesis="none", schedule=str(path))
    with pytest.raises(WrongSpec, match=r"schedule\.json cannot be injected: etcd is written in Go"):
        check_spec(spec)


@pytest.mark.parametrize("nemesis", ["none", *(kind for kind in KINDS if kind != "clock")])
def test_every_other_fault_reaches_etcd(nemesis: str) -> None:
    check_spec(Spec(subject="etcd", nemesis=nemesis))


def test_clock_faults_reach_the_bundled_kraft() -> None:
    check_spec(Spec(subject="kraft", nemesis="clock"))


def test_the_capability_that_etcd_names_exists() -> None:
    assert set(Etcd.unreachable_by) == {CLOCK}
