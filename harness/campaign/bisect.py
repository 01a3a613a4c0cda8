"""Which revision of this repository brought a violation: bisection with k of n runs at each revision.

A violation does not show in every run.  So a revision counts as bad if at least `needed` of `times` runs saw it, and as
good otherwise; no further run is made once that is decided.  A revision whose runs cannot be made or judged says
nothing: its neighbours are tried instead.  The more runs, the less likely it is that luck has misled the search.

Revisions are ordered, the oldest first.  The search assumes, as every bisection does, that a violation that has come
stays until the last of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checkers.base.results import NO_RESULTS, RunVerdict, read_results
from harness.campaign.loop import violations_in
from harness.spec import Spec, WrongSpec

Saw = Callable[[str], bool | None]
"""Makes one run at a revision: whether it saw the violation, None if it could not be made or judged."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """last_good, first_bad: revisions.  unknown: those between them whose runs could not be made or judged; the
    violation came with one of them, or with the first bad one."""

    last_good: str
    first_bad: str
    unknown: tuple[str, ...] = ()


def bisect(revisions: Sequence[str], saw: Saw, needed: int, times: int, say: Callable[[str], None]) -> Culprit:
    """The revision that brought it.  revisions: the oldest first; the first must be good, and the last bad.

    Raises WrongSpec with a sentence if one of them is not.
    """
    verdicts: dict[str, bool | None] = {}

    def bad(at: int) -> bool | None:
        revision = revisions[at]
        if revision not in verdicts:
            verdicts[revision] = k_of_n(lambda: saw(revision), needed, times)
            say(f"{revision[:12]}: {_WORDS[verdicts[revision]]}")
        return verdicts[revision]

    good, first_bad = 0, len(revisions) - 1
    if good >= first_bad:
        raise WrongSpec("there is no revision between the good and the bad one")
    if bad(first_bad) is not True:
        raise WrongSpec(f"the bad revision {revisions[first_bad][:12]} {_WORDS[bad(first_bad)]}: try more --times")
    if bad(good) is not False:
        raise WrongSpec(f"the good revision {revisions[good][:12]} {_WORDS[bad(good)]}")
    while True:
        middle = (good + first_bad) / 2
        between = sorted(range(good + 1, first_bad), key=lambda at: abs(at - middle))
        at = next((at for at in between if bad(at) is not None), None)
        if at is None:
            return Culprit(revisions[good], revisions[first_bad], tuple(revisions[one] for one in sorted(between)))
        good, first_bad = (good, at) if bad(at) else (at, first_bad)


_WORDS = {True: "shows the violation", False: "does not show it", None: "could not be run or judged"}


def k_of_n(saw: Callable[[], bool | None], needed: int, times: int) -> bool | None:
    """Whether at least `needed` of `times` runs saw it; None if so many failed that this is not known."""
    seen = failed = 0
    for done in range(1, times + 1):
        found = saw()
        seen += found is True
        failed += found is None
        if seen >= needed:
            return True
        if seen + (times - done) + failed < needed:
            return False
    return False if seen + failed < needed else None


def revisions_between(repository: Path, good: str, bad: str) -> list[str]:
    """From the good to the bad revision, both included, along the first parents.  Raises WrongSpec."""
    first, last = (_git(repository, "rev-parse", "--verify", f"{name}^{{commit}}") for name in (good, bad))
    found = _git(repository, "rev-list", "--first-parent", "--reverse", f"{first}..{last}").split()
    if not found:
        raise WrongSpec(f"{bad} does not come after {good}")
    return [first, *found]


@contextmanager
def checked_out(repository: Path, revision: str) -> Iterator[Path]:
    """A tree of its own with this revision, removed afterwards.  Raises WrongSpec."""
    with tempfile.TemporaryDirectory(prefix="krucible-bisect-") as folder:
        tree = Path(folder) / "tree"
        _git(repository, "worktree", "add", "--detach", "--quiet", str(tree), revision)
        try:
            yield tree
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def run_at(
    repository: Path, revision: str, spec: Spec, kept_in: Path, wanted: frozenset[tuple[str, str]]
) -> bool | None:
    """One run of the code of a revision: whether it saw one of these (checker, kind); None if it was not judged.

    kept_in: where its folder is kept, one folder for each revision.
    """
    kept = kept_in / revision[:12]
    with checked_out(repository, revision) as tree, (kept_in / "bisect.log").open("ab") as log:
        words = [sys.executable, "-m", "harness", *spec.words(), "--results", str(kept.resolve())]
        subprocess.run(words, cwd=tree, stdout=log, stderr=log, check=False)
        results = read_results(kept / "latest") or NO_RESULTS
        (kept / "latest").unlink(missing_ok=True)  # so that a next run that fails is not taken for this one
    if wanted & set(violations_in(results)):
        return True
    return False if results.verdict in (RunVerdict.VALID, RunVerdict.INVALID) else None  # unknown proves nothing


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise WrongSpec(f"git {words[0]} failed: {reason}")
    return done.stdout.strip()
