"""Programs in Rust are built once; a patch takes the place of a dependency; what goes wrong is one sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from harness.backends.backend import BackendUnavailable
from harness.backends.builds import build_all
from system_under_test.subject import Artefact, Crate, Needs

needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo on this machine")

MAIN = 'fn main() { println!("{}", greeting::words()); }\n'
LIBRARY = 'pub fn words() -> &\'static str {\n    "as published"\n}\n'
PATCH = """\
--- a/src/lib.rs
+++ b/src/lib.rs
@@ -1,3 +1,3 @@
 pub fn words() -> &'static str {
-    "as published"
+    "as mended"
 }
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program that depends on a published library: crates.io is a folder, so no network is needed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if cargo := shutil.which("cargo"):  # behind rustup's proxies, which a home of cargo's own would mislead
        toolchain = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True, cwd="/")
        monkeypatch.setenv("PATH", f"{toolchain.stdout.strip()}/bin:{Path(cargo).parent}:/usr/bin:/bin")
    home, vendored = tmp_path / "cargo home", tmp_path / "vendored" / "greeting"
    monkeypatch.setenv("CARGO_HOME", str(home))
    write(home / "config.toml", '[source.crates-io]\nreplace-with = "here"\n[source.here]\n')
    with (home / "config.toml").open("a") as config:
        config.write(f"directory = {json.dumps(str(vendored.parent))}\n")
    write(vendored / "Cargo.toml", '[package]\nname = "greeting"\nversion = "1.0.0"\nedition = "2021"\n')
    write(vendored / "src" / "lib.rs", LIBRARY)
    checksum = hashlib.sha256(b"the package").hexdigest()
    write(vendored / ".cargo-checksum.json", json.dumps({"files": {}, "package": checksum}))
    folder = tmp_path / "mine" / "server"
    package = '[package]\nname = "server"\nversion = "0.1.0"\nedition = "2021"\n'
    write(folder / "Cargo.toml", package + '[dependencies]\ngreeting = "=1.0.0"\n')
    locked = 'name = "greeting"\nversion = "1.0.0"\nsource = "registry+https://github.com/rust-lang/crates.io-index"\n'
    locked += f'checksum = "{checksum}"\n'
    server = 'name = "server"\nversion = "0.1.0"\ndependencies = [\n "greeting",\n]\n'
    write(folder / "Cargo.lock", f"version = 4\n\n[[package]]\n{locked}\n[[package]]\n{server}")
    write(folder / "src" / "main.rs", MAIN)
    write(folder / "mends" / "greeting.patch", PATCH)
    return folder.parent


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(beside: Path, crate: Crate) -> tuple[Path, list[str]]:
    """The program, and what was reported while it was built."""
    said: list[str] = []
    return build_all(Needs(crates={"bin/server": crate}), beside, said.append, threading.Event())["bin/server"], said


def output(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip()


@needs_cargo
def test_a_program_is_built_once(beside: Path) -> None:
    program, said = build(beside, Crate("server"))
    assert output(program) == "as published"
    assert said[0].startswith("building server with cargo, once")
    again, said = build(beside, Crate("server"))
    assert (again, said) == (program, [])
    (beside / "server" / "src" / "main.rs").write_text(MAIN.replace("{}", "now {}"))
    assert output(build(beside, Crate("server"))[0]) == "now as published"
    assert not (beside / "server" / "target").exists()


@needs_cargo
def test_a_patch_changes_a_copy_of_the_dependency(beside: Path, tmp_path: Path) -> None:
    patched, _ = build(beside, Crate("server", {"greeting": "mends/greeting.patch"}))
    assert output(patched) == "as mended"
    assert output(build(beside, Crate("server"))[0]) == "as published"
    assert (tmp_path / "vendored" / "greeting" / "src" / "lib.rs").read_text() == LIBRARY
    assert {path.name for path in patched.parent.parent.iterdir() if path.is_dir()} == {
        "target-server",
        "patched",
        patched.parent.name,
        build(beside, Crate("server"))[0].parent.name,
    }


@needs_cargo
def test_what_cannot_be_built_is_one_sentence(beside: Path) -> None:
    (beside / "server" / "mends" / "greeting.patch").write_text(PATCH.replace('-    "as', '-    "not as'))
    with pytest.raises(BackendUnavailable, match=r"greeting.patch does not fit greeting 1.0.0 \("):
        build(beside, Crate("server", {"greeting": "mends/greeting.patch"}))
    with pytest.raises(BackendUnavailable, match="is for other, of which the program has 0 versions"):
        build(beside, Crate("server", {"other": "mends/greeting.patch"}))
    (beside / "server" / "src" / "main.rs").write_text("fn main() { absent(); }\n")
    with pytest.raises(
        BackendUnavailable,
        match=r"cargo could not build server \(error\[E0425\]: cannot find function `absent`.*\): see .*/server.log",
    ):
        build(beside, Crate("server"))


def test_without_cargo_the_sentence_says_what_to_install(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("cargo"):
        pytest.skip("cargo is a program of the system here")
    with pytest.raises(BackendUnavailable, match=r"server is a program in Rust, .*: install Rust \(rustup.rs\)"):
        build(beside, Crate("server"))


def test_an_artefact_is_made_once_for_each_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []

    def make(text: str) -> str:
        commands = (("mkdir", "out"), ("cp", "in/words", "out/words"), ("rm", "-r", "in"))
        needs = Needs(artefacts={"words": Artefact("words 1.0", commands, "out/words", {"in/words": text})})
        return build_all(needs, tmp_path, said.append, threading.Event())["words"].read_text()

    assert (make("one"), make("one"), make("two")) == ("one", "one", "two")
    assert said == ["making words 1.0, once"] * 2


@pytest.mark.parametrize(
    ("command", "result", "words"),
    [
        (("false",), "out", "words 1.0 cannot be made: false"),
        (("true",), "out", "its commands left no out"),
        (("no-such-program",), "out", "is made by no-such-program, which is not installed"),
    ],
)
def test_an_artefact_that_cannot_be_made_is_refused(
    command: tuple[str, ...], result: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    needs = Needs(artefacts={"words": Artefact("words 1.0", (command,), result)})
    with pytest.raises(BackendUnavailable, match=words):
        build_all(needs, tmp_path, lambda words: None, threading.Event())
    assert not [path for path in (tmp_path / "cache" / "krucible" / "artefacts").glob("*") if path.is_dir()]
