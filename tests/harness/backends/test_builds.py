"""What is built for nodes: code, wheels, crates and artefacts."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
from pathlib import Path

import pytest

from harness.backends.backend import BackendUnavailable
from harness.backends.builds import REPOSITORY, build_all, fetch_wheels, node_code
from harness.registry import SUBJECTS, load
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
    if cargo := shutil.which("cargo"):  # cargo may be a proxy of rustup, which a different CARGO_HOME would confuse
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
    with pytest.raises(BackendUnavailable, match="needs one version of other, and the program depends on 0 versions"):
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


PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "tiny-1.0-TAG.whl"
    with zipfile.ZipFile(wheel_directory + "/" + name, "w") as wheel:
        wheel.writestr("tiny.py", "answer = 42\\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: TAG\\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    return name
"""


@pytest.fixture(autouse=True)
def only_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip knows no other index than a folder, so these tests need no network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def publish_source(folder: Path, tag: str) -> None:
    """A library `tiny` 1.0 that is published as source only, and whose wheel has this tag."""
    files = {
        "pyproject.toml": PROJECT,
        "backend.py": BACKEND.replace("TAG", tag),
        "PKG-INFO": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    }
    with tarfile.open(folder / "tiny-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"tiny-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def fetched(*requirements: str) -> tuple[Path, list[str]]:
    progress: list[str] = []
    return fetch_wheels(requirements, "3.11", "x86_64", progress.append, threading.Event()), progress


def test_a_library_without_a_wheel_is_made_into_one(tmp_path: Path) -> None:
    publish_source(tmp_path, "py3-none-any")
    folder, progress = fetched("tiny==1.0")
    assert (folder / "tiny.py").read_text() == "answer = 42\n"
    assert "making a wheel of tiny==1.0, which is published as source" in progress
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing unfinished is left"
    assert fetched("tiny==1.0") == (folder, []), "the second time it is there"


def test_source_that_must_be_compiled_is_refused(tmp_path: Path) -> None:
    publish_source(tmp_path, "cp311-cp311-linux_x86_64")
    with pytest.raises(BackendUnavailable, match="its source has to be compiled"):
        fetched("tiny==1.0")


def test_a_library_that_does_not_exist_is_named() -> None:
    with pytest.raises(BackendUnavailable, match=r"no wheel of missing==1\.0"):
        fetched("missing==1.0")


EXAMPLE = REPOSITORY / "examples" / "highest_value.py"
AGENT = "harness.agent.process"
READ = """
for name in ("pyarrow", "numpy", "numba", "networkx"):
    sys.modules[name] = None
from pathlib import Path
from system_under_test.own.read_own_system import read_files
example = Path({example!r})
module = read_files(example, files={{example.name: example.read_text()}})
import checkers, workloads
assert all(Path(each.__path__[0]).is_relative_to({code!r}) for each in (checkers, workloads))
print(module.HighestClient.__name__, module.MODEL.name, module.HighestValue.name)
"""


def as_on_a_node(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the code of a node and installed packages, but none of this tree, which they may lead to."""
    for name, content in node_code().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    paths = f"import sys; sys.path[:0] = {[str(folder), sysconfig.get_path('purelib')]!r}\n"
    argv = [sys.executable, "-S", "-c", paths + text]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def test_a_node_can_read_a_file_that_holds_everything(tmp_path: Path) -> None:
    done = as_on_a_node(tmp_path / "code", READ.format(code=str(tmp_path / "code"), example=str(EXAMPLE)))
    assert done.stdout.split() == ["HighestClient", "highest-value", "highest-value"], done.stderr


def test_a_node_can_import_its_agent_and_the_client_of_every_bundled_system(tmp_path: Path) -> None:
    kinds = [load(place) for place in SUBJECTS.values()]
    modules = {kind.client.__module__ if kind.client else kind.client_module for kind in kinds} | {AGENT}
    assert "system_under_test.kafka.client" in modules
    done = as_on_a_node(tmp_path, f"sys.modules['pyarrow'] = None; import {', '.join(filter(None, sorted(modules)))}")
    assert (done.returncode, done.stderr) == (0, "")
