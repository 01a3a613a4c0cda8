"""Code in a run folder is executed only if this machine or a trusted key has signed it, or the user says --trust."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from own_cache import use_own_cache

from checkers.record.files import write_json_whole
from checkers.record.header_and_outcome import Header
from checkers.record.run_record import FORMAT, TEST
from checkers.sealing.manifest import KEY_VARIABLE, MANIFEST, key_path, write_manifest
from harness.cli.main import cli, run_command_line
from harness.judge.judge_run import spec_of
from harness.registry import load_subject, load_workload
from harness.spec import Spec, WrongSpec

EVIL = """
from pathlib import Path

(Path(__file__).parents[1] / "executed").touch()
raise SystemExit("it was executed")
"""
COMMANDS = (["analyze", "--in-process"], ["replay"], ["check-logs"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_cache(monkeypatch, tmp_path / "cache")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture(params=["subject", "workload"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run folder that holds code of its author, and no manifest."""
    (root := tmp_path / "run").mkdir()
    (root / request.param).mkdir()
    (root / request.param / "evil.py").write_text(EVIL)
    if request.param == "subject":
        (root / "subject" / "main.json").write_text(json.dumps({"main": "evil.py"}))
        spec = Spec(subject="evil.py", bug="stale-read")
    else:
        spec = Spec(subject="canary", workload="evil.py")
    header = Header(spec.to_json(), run_id="1", started_monotonic_ns=1, format=FORMAT, schedule=())
    write_json_whole(root / TEST, header)
    violation = {"kind": "stale read", "summary": "", "events": [], "facts": {}}
    checkers = {"linearizability": {"verdict": "invalid", "witness": [violation], "reason": "", "looked_at": {}}}
    (root / "results.json").write_text(json.dumps({"verdict": "invalid", "exit_code": 1, "checkers": checkers}))
    (root / "schedule.json").write_text(json.dumps({"cards": []}))
    return root


def unlisted(root: Path) -> None:
    """A manifest that this machine signed, and that lists no code: it was added later."""
    for name in ("subject", "workload"):
        if (root / name).exists():
            shutil.move(root / name, root.with_name("moved"))
            write_manifest(root)
            shutil.move(root.with_name("moved"), root / name)


def unsigned(root: Path) -> None:
    write_manifest(root)
    (root / MANIFEST).write_text(json.dumps({"files": json.loads((root / MANIFEST).read_text())["files"]}))


def of_a_stranger(root: Path) -> None:
    before, os.environ["XDG_CACHE_HOME"] = os.environ["XDG_CACHE_HOME"], str(root.with_name("elsewhere"))
    write_manifest(root)
    os.environ["XDG_CACHE_HOME"] = before


def with_a_borrowed_signature(root: Path) -> None:
    """The signature is one of this machine, over another manifest."""
    write_manifest(root)
    manifest = json.loads((root / MANIFEST).read_text())
    manifest["files"] = {**manifest["files"], "schedule.json": {"size_bytes": 2, "blake2b": "0"}}
    (root / "schedule.json").write_text("[]")
    (root / MANIFEST).write_text(json.dumps(manifest))


REFUSED = {
    "no manifest": (lambda root: None, "nobody has signed the run yet: its test goes on, or was cut short"),
    "not listed": (unlisted, "was added after the run, so nothing in"),
    "unsigned": (unsigned, "the run is unsigned: nothing shows who made this run"),
    "a stranger's": (of_a_stranger, "the run is signed by an unknown key (SHA256:"),
    "borrowed": (with_a_borrowed_signature, "schedule.json"),
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(("prepare", "why"), REFUSED.values(), ids=REFUSED)
def test_code_of_a_stranger_is_not_executed(
    prepare: Callable[[Path], None],
    why: str,
    command: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    prepare(folder)
    monkeypatch.setattr(sys, "argv", ["krucible", *command, str(folder)])
    with pytest.raises(SystemExit) as end:
        run_command_line()
    assert not (folder / "executed").exists()
    if command[0] == "check-logs":  # it runs no code of the run, and judges the logs as they are
        return
    said = " ".join(capfd.readouterr().err.split())
    assert end.value.code == 3
    if prepare not in (with_a_borrowed_signature, unlisted):
        assert f"would execute code from its own folder: {next(folder.rglob('evil.py')).relative_to(folder)}" in said
        assert why in said and "--trust" in said


@pytest.mark.parametrize("prepare", [write_manifest, of_a_stranger, lambda root: None], ids=["own", "known", "flag"])
def test_code_that_this_machine_signed_or_that_the_user_trusts_is_executed(
    prepare: Callable[[Path], None], folder: Path
) -> None:
    prepare(folder)
    trust = not (folder / MANIFEST).exists()
    if prepare is of_a_stranger:
        theirs = folder.with_name("elsewhere") / "krucible-keys" / "ed25519.pub"
        key_path().parent.mkdir(parents=True)
        key_path().with_name("trusted_keys").write_text(theirs.read_text())
    spec = spec_of(folder, trust)
    with pytest.raises(WrongSpec, match="it was executed"):
        load_subject(spec.subject) and load_workload(spec)
    assert (folder / "executed").exists()


def test_code_that_was_changed_is_not_executed_even_if_the_user_trusts_it(folder: Path) -> None:
    write_manifest(folder)
    path = next(folder.rglob("evil.py"))
    path.write_text(path.read_text() + "# changed\n")
    done = CliRunner().invoke(cli, ["analyze", "--in-process", "--trust", str(folder)])
    assert "was changed after the run" in str(done.exception) and "nothing in" in str(done.exception)
    assert not (folder / "executed").exists()


def test_a_page_executes_no_code_that_the_run_names(folder: Path) -> None:
    from harness.report.render import render

    spec = json.loads((folder / "test.json").read_text())
    spec["spec"] |= {"subject": str(next(folder.rglob("evil.py"))), "bug": "stale-read"}
    (folder / "test.json").write_text(json.dumps(spec))
    assert render(folder).exists()
    assert not (folder / "executed").exists()
