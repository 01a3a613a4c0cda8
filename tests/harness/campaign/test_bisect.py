"""Bisection over revisions: the first bad one is found, luck is weighed, and what cannot be run is not blamed."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from random import Random

import pytest

from harness.campaign.bisect import Culprit, bisect, checked_out, k_of_n, revisions_between, run_at
from harness.spec import Spec, WrongSpec

REVISIONS = [f"r{number}" for number in range(12)]
STALE = ("linearizability", "stale read")


def quiet(_: str) -> None:
    """Says nothing."""


@pytest.mark.parametrize("first_bad", range(1, 12))
def test_the_first_bad_revision_is_found_in_few_runs(first_bad: int) -> None:
    tried: list[str] = []

    def saw(revision: str) -> bool:
        tried.append(revision)
        return REVISIONS.index(revision) >= first_bad

    assert bisect(REVISIONS, saw, 1, 1, quiet) == Culprit(f"r{first_bad - 1}", f"r{first_bad}")
    assert len(tried) == len(set(tried)) <= 6


@pytest.mark.parametrize("first_bad", range(1, 12))
@pytest.mark.parametrize("broken", [{1, 2}, {5}, {4, 5, 6, 7}, set(range(1, 11))])
def test_a_revision_that_cannot_be_run_is_not_blamed_alone(first_bad: int, broken: set[int]) -> None:
    def saw(revision: str) -> bool | None:
        at = REVISIONS.index(revision)
        return None if at in broken else at >= first_bad

    found = bisect(REVISIONS, saw, 1, 1, quiet)
    suspects = {found.first_bad, *found.unknown}
    assert f"r{first_bad}" in suspects and found.last_good not in suspects
    assert {REVISIONS.index(one) for one in found.unknown} <= broken


def test_ends_that_are_not_as_stated_are_refused() -> None:
    for saw, words in (
        (lambda _: False, "the bad revision r11 does not show it"),
        (lambda _: True, "the good revision r0 shows the violation"),
        (lambda _: None, "the bad revision r11 could not be run or judged"),
    ):
        with pytest.raises(WrongSpec, match=words):
            bisect(REVISIONS, saw, 1, 1, quiet)
    with pytest.raises(WrongSpec, match="no revision between"):
        bisect(["r0"], lambda _: True, 1, 1, quiet)


@pytest.mark.parametrize("answers", list(itertools.product([True, False, None], repeat=3)))
@pytest.mark.parametrize("needed", [1, 2, 3])
def test_k_of_n_says_what_all_runs_would_say(answers: tuple[bool | None, ...], needed: int) -> None:
    runs = iter(answers)
    found = k_of_n(lambda: next(runs), needed, len(answers))
    seen, failed = answers.count(True), answers.count(None)
    assert found is (True if seen >= needed else None if seen + failed >= needed else False)


def test_enough_runs_outweigh_a_violation_that_seldom_shows() -> None:
    rng = Random(1)
    found = [
        bisect(REVISIONS, lambda revision: REVISIONS.index(revision) >= 7 and rng.random() < 0.5, 1, 10, quiet)
        for _ in range(50)
    ]
    assert sum(one.first_bad == "r7" for one in found) >= 48


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Four revisions of a `harness` that writes its verdict; from the third on it is invalid."""
    root = tmp_path / "tree"
    root.mkdir()

    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    for number, verdict in enumerate(("valid", "valid", "invalid", "invalid")):
        witness = [{"kind": STALE[1], "summary": "it was stale"}] if verdict == "invalid" else []
        checkers = {STALE[0]: {"verdict": verdict, "witness": witness}}
        (root / "harness").mkdir(exist_ok=True)
        (root / "harness" / "__main__.py").write_text(
            "import pathlib, sys\n"
            "folder = pathlib.Path(sys.argv[sys.argv.index('--results') + 1]) / 'run'\n"
            "folder.mkdir(parents=True, exist_ok=True)\n"
            f"(folder / 'results.json').write_text('''{json_of(verdict, checkers)}''')\n"
            "(folder.parent / 'latest').symlink_to('run')\n"
        )
        git("add", "-A")
        git("commit", "--quiet", "--allow-empty", "-m", f"revision {number}")
    return root


def json_of(verdict: str, checkers: object) -> str:
    import json

    return json.dumps({"verdict": verdict, "checkers": checkers})


def test_revisions_of_a_repository_are_checked_out_run_and_removed(repository: Path, tmp_path: Path) -> None:
    revisions = revisions_between(repository, "main~3", "main")
    assert len(revisions) == 4
    wanted, results = frozenset({STALE}), tmp_path / "results"
    results.mkdir()
    found = bisect(revisions, lambda one: run_at(repository, one, Spec(), results, wanted), 1, 1, quiet)
    assert found == Culprit(revisions[1], revisions[2])
    other = frozenset({("linearizability", "lost write")})
    assert run_at(repository, revisions[3], Spec(), results, other) is False
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


def test_what_git_refuses_is_one_sentence(repository: Path) -> None:
    with pytest.raises(WrongSpec, match="git rev-parse failed"):
        revisions_between(repository, "nonsense", "main")
    with pytest.raises(WrongSpec, match="does not come after"):
        revisions_between(repository, "main", "main~1")
    with pytest.raises(WrongSpec, match="git worktree failed"), checked_out(repository, "nonsense"):
        raise AssertionError("it was checked out")
