"""A campaign's runs are processes of their own: their folders are found, and Ctrl-C lets them clean up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from command_line import NO_SPARK
from waiting import PATIENCE_S

from harness.campaign import loop
from harness.campaign.loop import run_child

PYTHON = sys.executable
BEGIN = """
import signal, sys, time
from pathlib import Path
results = Path(sys.argv[sys.argv.index("--results") + 1])
def begin(name, *files):
    run = results / name
    run.mkdir()
    for file in files:
        (run / file).write_text("{}")
    Path(sys.argv[sys.argv.index("--note-folder") + 1]).write_text(str(run))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what `python -m harness` does."""

    def become(source: str) -> None:
        script = tmp_path / "program"
        script.write_text(f"#!{PYTHON}\n{BEGIN}{source}")
        script.chmod(0o700)
        monkeypatch.setattr(loop.sys, "executable", str(script))

    return become


def test_the_folder_of_a_run_is_the_one_that_it_made(tmp_path: Path, program: Callable[[str], None]) -> None:
    program('begin("first", "results.json"); print("some words"); raise SystemExit(1)')
    first = run_child(["run"], tmp_path, tmp_path / "log")
    assert (first.exit_code, first.judged) == (1, tmp_path / "first")
    assert (tmp_path / "log").read_text() == "some words\n"
    program('begin("second"); raise SystemExit(3)')
    second = run_child(["run"], tmp_path, tmp_path / "log")
    assert (second.folder, second.judged) == (tmp_path / "second", None)
    program("raise SystemExit(3)")
    assert run_child(["run"], tmp_path, tmp_path / "log").folder is None


def test_a_run_of_another_campaign_in_the_same_results_is_not_taken_for_its_own(
    tmp_path: Path, program: Callable[[str], None]
) -> None:
    program('begin("own", "results.json"); (results / "other").mkdir(); (results / "latest").symlink_to("other")')
    assert run_child(["run"], tmp_path, tmp_path / "log").judged == tmp_path / "own"
    program('(results / "another").mkdir(); (results / "latest").unlink(); (results / "latest").symlink_to("another")')
    assert run_child(["run"], tmp_path, tmp_path / "log").folder is None


def test_a_real_run_writes_down_its_folder(tmp_path: Path) -> None:
    words = ["run", "--subject", "canary", "--nemesis", "none", "--time-limit", "1", "--rate", "100", *NO_SPARK]
    run = run_child(words, tmp_path / "results", tmp_path / "log")
    assert run.judged == (tmp_path / "results" / "latest").resolve(), (tmp_path / "log").read_text()
    assert not list(tmp_path.glob(".folder*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_waits_until_its_run_has_cleaned_up(
    tmp_path: Path,
    program: Callable[[str], None],
    number: signal.Signals,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program(
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        'open(results / "ready", "w").write("ready")\n'
        "signal.sigwait({signal.SIGTERM})\n"  # also a signal that came before this line
        'begin("cleaned-up"); sys.exit(3)'
    )
    os.mkfifo(tmp_path / "ready")
    waits = threading.Event()

    class Child(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            waits.set()
            return super().wait(timeout)

    monkeypatch.setattr(loop.subprocess, "Popen", Child)

    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job

    def interrupt() -> None:
        assert (tmp_path / "ready").read_text() == "ready"
        waits.wait(PATIENCE_S)  # the child may be ready before `Popen` has returned
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_child(["run"], tmp_path, tmp_path / "log")
    assert (tmp_path / "cleaned-up").is_dir()
