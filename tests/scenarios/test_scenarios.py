"""Every transcript in this folder is what the voters do.  `pytest tests/scenarios --rewrite` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SCENARIOS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_voters_do_what_the_transcript_says(path: Path, request: pytest.FixtureRequest) -> None:
    from narrator import play

    written = path.read_text()
    played = play(written)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played)
    assert played == play(played), "a scenario decides everything"
    assert path.read_text() == played


@pytest.mark.parametrize("path", [p for p in SCENARIOS if " bug " in p.read_text()], ids=lambda path: path.stem)
def test_a_planted_bug_breaks_an_invariant_and_without_it_all_hold(path: Path) -> None:
    from narrator import play

    scenario = path.read_text()
    assert " is violated: " in play(scenario)
    clean = re.sub(r"^(> voters .*) bug [a-z-]+", r"\1", scenario, flags=re.MULTILINE)
    assert play(clean).endswith("Every invariant held.\n")


def test_every_transcript_explains_itself_first() -> None:
    assert len(SCENARIOS) >= 10
    for path in SCENARIOS:
        assert path.read_text().startswith("# "), path.name


def test_a_line_that_is_no_command_is_refused() -> None:
    from narrator import UnknownCommand, play

    with pytest.raises(UnknownCommand, match="dance"):
        play("> voters 3\n> dance 1\n")
