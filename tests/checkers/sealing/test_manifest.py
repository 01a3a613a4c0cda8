"""The manifest: every primary file is bound, a change of any is named, and a signature shows who made the run."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from histories import Script, write_stream
from own_cache import use_own_cache

from checkers.sealing.manifest import (
    KEY_VARIABLE,
    MANIFEST,
    SignedBy,
    Signer,
    WrongKey,
    broken_bonds,
    entry_of,
    is_bound,
    key_path,
    own_key,
    sign,
    signer,
    signer_of,
    write_manifest,
)
from checkers.sealing.seal import seal


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = write_stream(tmp_path / "run", Script().invoke(0, "write", 1).ok(0).events)
    for name in (
        "test.json",
        "schedule.json",
        "trace/n1.jsonl",
        "nodes/n1/copies/0/log",
        "subject/main.json",
        "subject/mine.py",
        "workload/mine.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}")
    write_manifest(root)
    return root


def test_what_was_bound_stays_bound_when_the_run_is_sealed_and_judged(run: Path) -> None:
    assert broken_bonds(run) == []
    seal(run)
    (run / "results.json").write_text("{}")
    (run / "report.html").write_text("")
    assert broken_bonds(run) == []
    assert is_bound(run, "history.parquet") and not is_bound(run, "history.arrows")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("change", [Path.unlink, emptied, flipped])
@pytest.mark.parametrize(
    "name",
    [
        "test.json",
        "trace/n1.jsonl",
        "nodes/n1/copies/0/log",
        "history.parquet",
        "subject/main.json",
        "subject/mine.py",
        "workload/mine.py",
    ],
)
def test_a_file_that_was_changed_is_named(run: Path, name: str, change: Callable[[Path], None]) -> None:
    seal(run)
    change(run / name)
    [clause] = broken_bonds(run)
    assert clause.startswith(f"{name} ")


@pytest.mark.parametrize(
    ("name", "clauses"),
    [
        ("trace/n2.jsonl", ["trace/n2.jsonl was added after the run"]),
        ("subject/__pycache__/mine.cpython-311.pyc", []),
        ("manifest.json", ["manifest.json does not contain a JSON object"]),
    ],
)
def test_a_file_that_is_written_after_the_run_is_named_unless_python_makes_it(
    run: Path, name: str, clauses: list[str]
) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("[]")
    assert broken_bonds(run) == clauses


def test_sealing_vouches_for_no_stream_that_was_changed(run: Path) -> None:
    write_stream(run, Script().invoke(0, "write", 2).ok(0).events)
    seal(run)
    assert [clause.split()[0] for clause in broken_bonds(run)] == ["history.arrows"]
    assert (run / "history.arrows").exists(), "the stream that was changed is kept"


def test_without_a_manifest_nothing_is_bound(run: Path) -> None:
    (run / "manifest.json").unlink()
    seal(run)
    [clause] = broken_bonds(run)
    assert "there is no manifest.json" in clause


CONTENT = b'{"files": {}}'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_cache(monkeypatch, tmp_path / "cache")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_own_cache(monkeypatch, tmp_path / "another")


def test_a_key_is_made_at_first_use_and_only_its_user_can_read_it() -> None:
    first, second = sign(CONTENT), sign(CONTENT)
    assert first == second, "the key is kept, and signatures of Ed25519 hold no chance"
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(key_path().parent.stat().st_mode) == 0o700
    assert key_path().with_name("ed25519.pub").read_text().strip() == first["public_key"]
    assert {path.name for path in key_path().parent.iterdir()} == {"ed25519", "ed25519.pub"}


def test_runs_that_begin_at_once_make_one_key() -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = {signed["public_key"] for signed in pool.map(lambda _: sign(CONTENT), range(16))}
    assert len(keys) == 1


def test_the_signer_is_this_machine_or_a_known_or_an_unknown_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = sign(CONTENT)
    ours = signer_of(CONTENT, signed)
    assert (ours.by, ours.trusted) == (SignedBy.THIS_MACHINE, True)
    assert ours.key.startswith("SHA256:")
    on_another_machine(monkeypatch, tmp_path)
    assert signer_of(CONTENT, signed) == Signer(SignedBy.UNKNOWN_KEY, ours.key)
    sign(CONTENT)
    trusted = key_path().with_name("trusted_keys")
    trusted.write_text(f"# colleagues\n\nssh-rsa AAAA broken\n{signed['public_key']} the CI of Anna\n")
    known = signer_of(CONTENT, signed)
    assert (known.by, known.trusted, known.name) == (SignedBy.KNOWN_KEY, True, "the CI of Anna")
    assert known.words == f"signed by a known key of the CI of Anna ({ours.key})"
    trusted.write_bytes(b"\xff\xfe")
    assert signer_of(CONTENT, signed).by is SignedBy.UNKNOWN_KEY


@pytest.mark.parametrize(
    "changes",
    [
        *({"signature": signature} for signature in ("AAAA", "é", None)),
        *({"public_key": key} for key in ("ssh-ed25519 AAAA", "", 7)),
    ],
)
def test_a_signature_that_does_not_match_is_no_missing_one(changes: dict[str, object]) -> None:
    for signed in ({**sign(CONTENT), **changes}, changes, []):
        found = signer_of(CONTENT, signed)
        assert (found.by, found.trusted) == (SignedBy.CHANGED, False)


def test_a_signature_of_other_content_or_of_another_key_does_not_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = sign(CONTENT)
    assert signer_of(CONTENT + b" ", signed).by is SignedBy.CHANGED
    assert signer_of(CONTENT, None).by is SignedBy.NOBODY
    on_another_machine(monkeypatch, tmp_path)
    assert signer_of(CONTENT, {**signed, "public_key": sign(CONTENT)["public_key"]}).by is SignedBy.CHANGED


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not there")
def test_a_key_of_ci_is_one_that_ssh_keygen_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ci"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    monkeypatch.setenv(KEY_VARIABLE, str(path))
    assert sign(CONTENT)["public_key"] == " ".join(path.with_name("ci.pub").read_text().split()[:2])
    listed = subprocess.run(["ssh-keygen", "-l", "-f", path], check=True, capture_output=True, text=True).stdout
    assert signer_of(CONTENT, sign(CONTENT)).key in listed


@pytest.mark.parametrize("content", [None, b"", b"no key", b"rsa"])
def test_a_key_that_cannot_be_used_is_refused_in_one_sentence(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ci"
    if content == b"rsa":
        key = rsa.generate_private_key(65537, 2048)
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    elif content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(KEY_VARIABLE, str(path))
    with pytest.raises(WrongKey, match=rf"the signing key {path} .*: {KEY_VARIABLE} must name a key without"):
        own_key()


def test_sealing_on_the_same_machine_signs_what_it_made(run: Path) -> None:
    assert signer(run).by is SignedBy.THIS_MACHINE
    seal(run)
    assert signer(run).by is SignedBy.THIS_MACHINE
    assert "history.parquet" in json.loads((run / MANIFEST).read_text())["files"]
    assert broken_bonds(run) == []


def test_sealing_on_another_machine_leaves_the_signed_manifest_and_the_stream(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_another_machine(monkeypatch, tmp_path)
    before = (run / MANIFEST).read_bytes()
    for _ in range(2):
        seal(run)
        assert (run / MANIFEST).read_bytes() == before
        assert (run / "history.arrows").exists() and broken_bonds(run) == []
        assert signer(run).by is SignedBy.UNKNOWN_KEY
        (run / "history.parquet").write_bytes(b"of the attacker")  # it is derived again from the signed stream
    seal(run)
    assert (run / "history.parquet").read_bytes() != b"of the attacker"


def test_sealing_an_unsigned_run_does_not_sign_it(run: Path) -> None:
    files = json.loads((run / MANIFEST).read_text())["files"]
    (run / MANIFEST).write_text(json.dumps({"files": files}))
    seal(run)
    assert signer(run).by is SignedBy.NOBODY and not (run / "history.arrows").exists()


def test_a_manifest_that_was_changed_after_it_was_signed_is_named(run: Path) -> None:
    manifest = json.loads((run / MANIFEST).read_text())
    (run / "test.json").write_text("[]")
    manifest["files"]["test.json"] = entry_of(run / "test.json")
    (run / MANIFEST).write_text(json.dumps(manifest))
    assert broken_bonds(run) == [
        "manifest.json is signed, but its signature does not match: the manifest was changed after it was signed"
    ]
    seal(run)
    assert (run / "history.arrows").exists() and signer(run).by is SignedBy.CHANGED


def test_without_a_usable_key_the_manifest_is_unsigned(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, str(run / "none"))
    write_manifest(run)
    assert signer(run) == Signer(SignedBy.NOBODY)
    assert key_path() == run / "none"
