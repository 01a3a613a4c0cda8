"""A live system that elects nobody while its leader is stopped: `availability` finds it, and nothing else does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import NO_SPARK
from docker_things import needs_namespaces
from whole_runs import ROOT, command, ended, results_of

NEVER_ELECTS = """
from registers import RegisterClient, Registers

class NeverElects(Registers):
    client = RegisterClient
    failover_s, unavailable_s, elections = 2, 5, True

    async def status(self, node):
        return node.reports(1, "n1")
"""
CARD = {"number": 1, "kind": "pause", "name": "leader", "at_s": 5.0, "heal_s": 20.0}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", [pytest.param("namespaces", marks=needs_namespaces)])
def test_a_majority_that_does_not_serve_is_found(tmp_path: Path, backend: str) -> None:
    system, schedule = tmp_path / "never_elects", tmp_path / "one_pause.json"
    system.mkdir()
    shutil.copy(ROOT / "examples" / "tcp_register.py", system / "registers.py")
    (system / "system.py").write_text(NEVER_ELECTS)
    schedule.write_text(json.dumps({"schedule": 1, "cards": [CARD]}))
    words = ("--subject", str(system), "--schedule", str(schedule), "--nemesis", "pause", "--rate", "20", *NO_SPARK)
    done = ended(command(tmp_path / "results", backend, 7, *words, "--time-limit", "26"))
    checkers = results_of(tmp_path / "results")["checkers"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert {name for name, entry in checkers.items() if entry["verdict"] == "invalid"} == {"availability"}
    (witness,) = checkers["availability"]["witness"]
    assert witness["kind"] == "no operation succeeded"
    assert "although n2 and n3 ran, reached each other and were reached by" in witness["summary"]
    assert witness["summary"] in " ".join(done.stdout.split())
