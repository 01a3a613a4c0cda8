"""`replay` repeats a test as its options say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from checkers.record.header import Header
from checkers.record.journal import FORMAT
from harness.cli import campaigns
from harness.cli.main import cli
from harness.spec import Spec


@pytest.mark.parametrize("options", [(), ("--as-executed",)])
def test_faults_hit_the_same_nodes_only_if_that_is_wanted(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    monkeypatch.setattr(campaigns, "_carry_out", lambda plan, *_: plans.append(plan) or 0)
    spec = Spec(backend="simulator", seed=7)
    (tmp_path / "test.json").write_bytes(msgspec.json.encode(Header(spec.to_json(), "r", format=FORMAT)))
    schedule = tmp_path / "schedule.json"
    schedule.write_text("{}")
    ended = CliRunner().invoke(cli, ["replay", str(tmp_path), "--times", "2", *options])
    assert ended.exit_code == 0, ended.output
    tests = list(plans[0].tests)
    assert {(test.seed, test.as_executed) for test in tests} == {(7, bool(options))}
    assert {test.schedule for test in tests} == ({str(schedule)} if options else {None})
