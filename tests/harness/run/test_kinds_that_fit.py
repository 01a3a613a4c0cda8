"""The nemesis `all`: every kind of fault that a system and a backend allow, and why the others were left out."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.run.refused_before_start import check_spec, choose_backend, why_not, with_every_kind
from harness.spec import Spec, WrongSpec
from harness.terminal.progress import Progress
from nemesis.catalog import KINDS, kinds_of

NOTICES = """
from krucible import Client, System

class Registers(System):
    notices_damage = {noticed}

    async def start(self, node, nodes):
        return "exec sleep 1000"

class RegisterClient(Client):
    def read(self, key):
        return None

    def write(self, key, value):
        raise RuntimeError
"""


def test_all_stands_for_every_kind_that_fits_and_says_why_the_others_do_not() -> None:
    spec, left_out = with_every_kind(Spec(nemesis="all", backend="namespaces"))
    check_spec(spec)
    dealt = {kind.name for kind in kinds_of(spec.nemesis)}
    assert dealt | set(left_out) == set(KINDS)
    assert {"partition", "pause", "kill", "power", "disk"} <= dealt
    assert "member" in left_out["membership"], "a bundled KRaft whose voters are fixed"
    assert spec.test == f"test-{len(dealt)}-kinds"


def test_any_other_nemesis_stays_as_it_is() -> None:
    spec = Spec(nemesis="partition,kill", backend="namespaces")
    assert with_every_kind(spec) == (spec, {})


def test_a_subject_without_nodes_fits_no_kind() -> None:
    with pytest.raises(WrongSpec, match="no kind of fault fits: subject canary has no nodes to break"):
        with_every_kind(Spec(subject="canary", nemesis="all"))


@pytest.mark.parametrize("nemesis", ["partition,all", "none,all"])
def test_all_goes_alone(nemesis: str) -> None:
    with pytest.raises(WrongSpec, match="cannot be combined with others"):
        check_spec(Spec(nemesis=nemesis))


def test_damage_that_a_system_does_not_promise_to_notice_is_left_out(tmp_path: Path) -> None:
    """Each of its targets would be skipped, so a run with it alone could show nothing."""
    (tmp_path / "silent.py").write_text(NOTICES.format(noticed="{}"))
    (tmp_path / "noticing.py").write_text(NOTICES.format(noticed='{"truncate": "*.log"}'))
    silent = Spec(subject=str(tmp_path / "silent.py"), nemesis="damage", backend="namespaces")
    assert "does not promise to notice" in why_not(silent, "damage")
    with pytest.raises(WrongSpec, match=r"--nemesis damage cannot be injected: .* does not promise to notice"):
        choose_backend(silent, Progress(Console(file=io.StringIO())))
    assert why_not(replace(silent, subject=str(tmp_path / "noticing.py")), "damage") == ""


def test_a_system_with_brokers_of_their_own_is_refused_on_too_few_nodes() -> None:
    check_spec(Spec(subject="kraft-apart", nodes=4))
    with pytest.raises(WrongSpec, match="--nodes must be at least 4 for kraft-apart, not 3"):
        check_spec(Spec(subject="kraft-apart", nodes=3))
