"""Builds of programs and packages that nodes need and Debian does not provide.  They run on this machine, before the
nodes are created.

*Commands.*  A long command can be interrupted, and its newest line of output is reported while it runs.

*Code.*  Every node needs this project's code and the packages that the code imports.

If nodes have a file system of their own, the backend sends the code there: docker into an image, ssh into the run's
folder on the host.

*Clock library.*  The library that shifts a program's wall clock is compiled once per machine and version of its source.

*Wheels.*  Wheels are fetched for the nodes' Python, whose version often differs from that of the harness' Python.

If a library is published only as source, a wheel of it is built here first.  Nodes can use the wheel only if it is pure
Python: compiled code would be code for this machine's Python.

*Crates.*  Cargo builds each program once on this machine, at the versions that its Cargo.lock pins.

A library has no server to start, so a small program embeds the library and serves a port.  This module builds the
program.  The result is cached under a hash of the sources, the patches and the compiler.  All versions of a program
share one target folder in the cache, so little is compiled after a change.  The folder may be removed at any time.

A patch is applied to a copy of a dependency, and the program is built with that copy.  So a user can prove that the
patched code was the cause of a finding.

*Artefacts.*  Commands of a system make an artefact once for each content of its `Artefact`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata, resources
from pathlib import Path

from checkers.base.cache_folder import cache_folder
from harness.backends.backend import BackendUnavailable
from system_under_test.subject import Artefact, Crate, Jars, Needs


class Interrupted(RuntimeError):
    """The caller interrupted the work through its `stop` event."""


def run_watched(
    argv: Sequence[str],
    stop: threading.Event,
    say: Callable[[str], None] | None = None,
    log: Path | None = None,
) -> tuple[int, str]:
    """Run a command to its end, and return its exit status and its last line of output.

    stop: once it is set, the command is killed and Interrupted is raised
    say: called every ten seconds with the newest line of output
    log: file for the whole output
    If setpriv is installed, the command dies with this process.
    """
    if guard := shutil.which("setpriv"):
        argv = [guard, "--pdeathsig", "KILL", *argv]
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        said_at = time.monotonic()
        try:
            while process.poll() is None:
                if stop.wait(0.1):
                    raise Interrupted(f"{argv[0]} was interrupted")
                if say and time.monotonic() - said_at > 10 and (line := _last_line(output.fileno())):
                    said_at = time.monotonic()
                    say(line)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        return process.returncode, _last_line(output.fileno())


def _last_line(output: int) -> str:
    size = os.fstat(output).st_size
    tail = os.pread(output, 2000, max(0, size - 2000)).decode(errors="replace").splitlines()
    return tail[-1].strip() if tail else ""


def made_once(home: Path, make: Callable[[Path], object]) -> Path:
    """Return the path of a file or a folder in the cache.

    make: called if the path does not exist yet; it creates the file or folder at a temporary path that it gets, in an
        otherwise empty folder"""
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=f"{home.name}.") as unfinished:
            place = Path(unfinished) / home.name
            make(place)
            with contextlib.suppress(OSError):  # another run built it first
                place.rename(home)
    return home


REPOSITORY = Path(__file__).resolve().parents[2]
NODE_WHEELS = ("kio", "crc32c", "mfusepy")
"""Packages that the code on nodes imports, at the versions that this project requires."""
CODE_ON_NODES = (
    "harness/__init__.py",
    "harness/agent",
    "checkers/__init__.py",
    "checkers/base/cause_of_end.py",
    "checkers/base/history.py",
    "checkers/base/independent_search.py",
    "checkers/base/values.py",
    "checkers/cluster/__init__.py",
    "checkers/cluster/topic_states.py",
    "checkers/models/__init__.py",
    "checkers/models/model.py",
    "krucible",
    "system_under_test",
    "workloads/__init__.py",
    "workloads/generators.py",
    "workloads/workload.py",
)
"""Paths of all code that is copied to nodes.  It includes everything that a user's file may import that defines a
system, its clients, a workload and a model at once."""


def node_code() -> dict[str, bytes]:
    """Return relative path -> content of every file that runs on nodes.  Callers use one result for the hash and for
    the image, so that both agree."""
    files: list[Path] = []
    for name in CODE_ON_NODES:
        path = REPOSITORY / name
        files += sorted((*path.rglob("*.py"), *path.rglob("*.toml"))) if path.is_dir() else [path]
    return {str(path.relative_to(REPOSITORY)): path.read_bytes() for path in files}


def wheel_requirements() -> list[str]:
    """Return this project's requirements for NODE_WHEELS, such as kio>=0.6.5.

    In a source tree they are read from pyproject.toml, because the image is built while the project is still being
    installed.  An installed wheel has them only in its metadata.
    """
    project = REPOSITORY / "pyproject.toml"
    try:
        required = (
            tomllib.loads(project.read_text())["project"]["dependencies"]
            if project.exists()
            else metadata.requires("krucible")
        )
    except metadata.PackageNotFoundError:
        required = None
    lines = [line for line in required or () if line.startswith(NODE_WHEELS)]
    if len(lines) != len(NODE_WHEELS):
        raise BackendUnavailable(f"krucible must require {', '.join(NODE_WHEELS)}: install it again.")
    return sorted(lines)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return relative path -> content of every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of files that every user may read."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def in_order(code: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the path and the content of each file, sorted by path, as input of `digest`."""
    for path, content in sorted(code.items()):
        yield path.encode()
        yield content


def digest(*parts: bytes) -> str:
    running = hashlib.sha256()
    for part in parts:
        running.update(len(part).to_bytes(8, "big") + part)
    return running.hexdigest()[:16]


_FLAGS = ("-O2", "-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-ffreestanding", "-fno-stack-protector")


def clock_library() -> bytes:
    """Return the content of the compiled library.  Raises OSError if there is no C compiler or it fails."""
    source = resources.files("harness.agent").joinpath("wall_clock.c").read_text()
    name = hashlib.sha256(f"{platform.machine()} {_FLAGS} {source}".encode()).hexdigest()[:16]

    def build(place: Path) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            raise OSError("shifting clocks needs a C compiler on the harness' machine: install gcc or clang")
        words = [compiler, *_FLAGS, "-x", "c", "-", "-o", str(place)]
        done = subprocess.run(words, input=source, capture_output=True, text=True, check=False, timeout=60.0)
        if done.returncode != 0:
            raise OSError(f"the library that shifts clocks cannot be compiled: {done.stderr.strip().splitlines()[0]}")

    return made_once(cache_folder() / f"clock-{name}.so", build).read_bytes()


PURE = "-none-any.whl"
"""End of the file name of a wheel that any Python on any machine can install."""

_PIP = (sys.executable, "-P", "-m", "pip", "--quiet", "--disable-pip-version-check")
_WITHOUT_WHEEL = re.compile(r"No matching distribution found for (\S+)")


def fetch_wheels(
    requirements: Sequence[str], python: str, machine: str, progress: Callable[[str], None], stop: threading.Event
) -> Path:
    """Return a folder of the cache with the unpacked wheels of the requirements.  Blocks.

    python: version of the nodes' Python, such as "3.11"; "" for the Python of this process, for which pip may also
        compile packages
    machine: architecture of the nodes, such as "x86_64"
    Raises BackendUnavailable with pip's error message, Interrupted soon after `stop` is set.
    """

    def install(site: Path) -> None:
        progress(f"fetching wheels for the nodes' Python {python}: {', '.join(requirements)}")
        built = site.with_name("built")
        built.mkdir()
        argv = [*_PIP, "install", "--target", str(site), "--find-links", str(built)]
        if python:
            argv += ["--only-binary=:all:", "--python-version", python]
            argv += ["--implementation", "cp", "--abi", f"cp{python.replace('.', '')}"]
            for generation in ("manylinux2014", "manylinux_2_17", "manylinux_2_28"):
                argv += ["--platform", f"{generation}_{machine}"]
        tried: set[str] = set()
        status, tail = run_watched([*argv, *requirements], stop)
        while status != 0 and (found := _WITHOUT_WHEEL.search(tail)) and found[1] not in tried:
            tried.add(found[1])
            progress(f"making a wheel of {found[1]}, which is published as source")
            _build(found[1], built, stop)
            status, tail = run_watched([*argv, *requirements], stop)
        if status != 0:
            raise BackendUnavailable(f"pip could not fetch wheels for the nodes ({tail}): check the network and retry.")
        for cached in site.rglob("__pycache__"):
            shutil.rmtree(cached)

    parts = (python or sys.version, machine, *requirements)
    return made_once(cache_folder() / f"site-{digest(*map(str.encode, parts))}", install)


def _build(requirement: str, into: Path, stop: threading.Event) -> None:
    """Build a wheel from a library's source.  Raises BackendUnavailable unless the wheel is pure Python."""
    status, tail = run_watched([*_PIP, "wheel", "--no-deps", "--wheel-dir", str(into), requirement], stop)
    if status != 0:
        words = f"pip found no wheel of {requirement} for the nodes, and could not make one ({tail})"
        raise BackendUnavailable(f"{words}: check its name and the network.")
    if compiled := [wheel.name for wheel in into.iterdir() if not wheel.name.endswith(PURE)]:
        raise BackendUnavailable(
            f"There is no wheel of {requirement} for the nodes' Python, and its source has to be compiled "
            f"({', '.join(compiled)}): name another version, or a Debian package."
        )


_NO_PROGRAM = re.compile("-(test|test-fixtures|test-sources|sources|src|scaladoc|javadoc)$")
_JARS_KEPT_S = 86_400.0
"""Seconds without use by a run after which copied Java archives are removed from the cache."""


def fetch_jars(jars: Jars, progress: Callable[[str], None], stop: threading.Event) -> Path:
    """Return a folder of the cache that contains the archives.  Blocks.

    Raises BackendUnavailable if they cannot be provided, Interrupted soon after `stop` is set.
    """
    if jars.made is not None:
        return _make(jars.made, progress, stop)
    return _copied_jars([Path(folder).expanduser() for folder in jars.folders])


def _copied_jars(sources: Sequence[Path]) -> Path:
    """Copy the archives into the cache, so that nobody changes them during a run, and return the folder of the copy.
    Raises BackendUnavailable if there are no archives."""
    found = sorted(path for source in sources for path in source.glob("*.jar") if not _NO_PROGRAM.search(path.stem))
    if not found:
        raise BackendUnavailable(f"There is no Java archive (*.jar) in {', '.join(map(str, sources))}.")
    root = cache_folder()
    name = f"jars-of-{digest(*(part for path in found for part in (path.name.encode(), path.read_bytes())))}"
    for old in root.glob("jars-of-*"):
        if old.name != name and time.time() - old.stat().st_mtime > _JARS_KEPT_S:
            shutil.rmtree(old, ignore_errors=True)

    def copy(place: Path) -> None:
        place.mkdir()
        for path in found:
            shutil.copy(path, place / path.name)

    made_once(root / name, copy)
    (root / name).touch()
    return root / name


_FETCH_S = 900.0
"""Maximum seconds that cargo may take to fetch the sources of a program's dependencies."""
_PROGRESS = ("CARGO_TERM_PROGRESS_WHEN=always", "CARGO_TERM_PROGRESS_WIDTH=100", "CARGO_TERM_COLOR=never")


def build_all(needs: Needs, beside: Path, progress: Callable[[str], None], stop: threading.Event) -> dict[str, Path]:
    """Build all crates and artefacts, and return path on the node -> path of the result here.  Blocks, for minutes if a
    result is not cached.

    beside: folder of the system's file
    Raises BackendUnavailable if a build fails, Interrupted soon after `stop` is set.
    """
    built = {there: _build_crate(crate, beside / crate.folder, progress, stop) for there, crate in needs.crates.items()}
    return built | {there: _make(artefact, progress, stop) for there, artefact in needs.artefacts.items()}


def _make(artefact: Artefact, progress: Callable[[str], None], stop: threading.Event) -> Path:
    """Return the path of an artefact in the cache.  If it is not cached, run the commands that make it."""
    name = re.sub(r"[^\w.-]+", "-", artefact.name)
    home = cache_folder() / "artefacts" / f"{name}-{digest(json.dumps(asdict(artefact), sort_keys=True).encode())}"
    log = home.with_name(f"{home.name}.log")

    def make(place: Path) -> None:
        progress(f"making {artefact.name}, once")
        work = place.with_name("work")
        work.mkdir()
        for path, text in artefact.files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
        for command in artefact.commands:
            if shutil.which(command[0]) is None:
                raise BackendUnavailable(f"{artefact.name} is made by {command[0]}, which is not installed here.")
            argv = ["env", f"--chdir={work}", *command]
            status, tail = run_watched(argv, stop, lambda line: progress(f"{artefact.name}: {line.strip()}"), log)
            if status != 0:
                raise BackendUnavailable(f"{artefact.name} cannot be made: {shlex.join(command)}: {tail} (see {log})")
        if not (work / artefact.result).exists():
            raise BackendUnavailable(f"{artefact.name} cannot be made: its commands left no {artefact.result}")
        (place / artefact.result).parent.mkdir(parents=True)
        (work / artefact.result).rename(place / artefact.result)

    return made_once(home, make) / artefact.result


def _build_crate(crate: Crate, folder: Path, progress: Callable[[str], None], stop: threading.Event) -> Path:
    name = _name_of(folder)
    if shutil.which("cargo") is None:
        raise BackendUnavailable(
            f"{name} is a program in Rust, and there is no cargo on this machine to build it: install Rust (rustup.rs)."
        )
    home = cache_folder() / "crates" / f"{name}-{_version_of(crate, folder)}"

    def build(program: Path) -> None:
        progress(f"building {name} with cargo, once; a large library takes minutes")
        source = program.with_name("source")
        shutil.copytree(folder, source, ignore=shutil.ignore_patterns("target"))
        patched = [
            argument
            for dependency, patch in crate.patches.items()
            for argument in ("--config", _patch(dependency, folder / patch, source, stop))
        ]
        target = home.with_name(f"target-{name}")
        argv = ["env", *_PROGRESS, f"CARGO_TARGET_DIR={target}", "cargo", "build", "--release", *patched]
        argv += ["--manifest-path", str(source / "Cargo.toml")]
        argv += ["--offline"] if patched else ["--locked"]  # a patched crate loses its checksum in the lock file
        log = home.with_name(f"{name}.log")
        status, tail = run_watched(argv, stop, lambda line: progress(f"{name}: {line.strip()}"), log)
        if status != 0:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error")]
            raise BackendUnavailable(f"cargo could not build {name} ({(lines or [tail])[0]}): see {log}.")
        shutil.copy(target / "release" / name, program)

    return made_once(home / name, build)


def _name_of(folder: Path) -> str:
    """Return the name of the package, which is also the name of its program.  Raises BackendUnavailable."""
    try:
        name = tomllib.loads((folder / "Cargo.toml").read_text())["package"]["name"]
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as problem:
        raise BackendUnavailable(f"{folder / 'Cargo.toml'} names no package: {problem}.") from problem
    return str(name)


def _version_of(crate: Crate, folder: Path) -> str:
    """Return a hash of everything that determines the built program: compiler, sources and patches."""
    compiler = subprocess.run(["cargo", "--version", "--verbose"], capture_output=True, check=False, timeout=60).stdout
    parts = [compiler]
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and inside.parts[0] != "target" and path.suffix != ".patch":
            parts += [str(inside).encode(), path.read_bytes()]
    for dependency, patch in sorted(crate.patches.items()):
        parts += [dependency.encode(), (folder / patch).read_bytes()]
    return digest(*parts)


def _patch(dependency: str, patch: Path, source: Path, stop: threading.Event) -> str:
    """Patch a copy of a dependency's source, and return the configuration that makes cargo use the copy.  Raises
    BackendUnavailable."""
    argv = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(source / "Cargo.toml")]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=_FETCH_S)
    if done.returncode != 0:
        words = (done.stderr.decode(errors="replace").strip().splitlines() or ["without an error message"])[-1]
        raise BackendUnavailable(f"cargo could not fetch the sources to which {patch.name} applies ({words}).")
    found = [each for each in json.loads(done.stdout)["packages"] if each["name"] == dependency]
    if len(found) != 1:
        raise BackendUnavailable(
            f"{patch.name} needs one version of {dependency}, and the program depends on {len(found)} versions."
        )

    def apply(copy: Path) -> None:
        shutil.copytree(Path(found[0]["manifest_path"]).parent, copy)
        if shutil.which("patch") is None:
            raise BackendUnavailable(f"Applying {patch.name} needs the program `patch` on this machine: install it.")
        argv = ["patch", "--strip=1", "--fuzz=0", "--batch", "--directory", str(copy), "--input", str(patch.absolute())]
        status, tail = run_watched(argv, stop)
        if status != 0:
            raise BackendUnavailable(f"{patch.name} does not fit {dependency} {found[0]['version']} ({tail}).")

    version = f"{dependency}-{found[0]['version']}-{digest(patch.read_bytes())}"
    # All programs share one folder, so that dependent crates are compiled once.
    patched = made_once(cache_folder() / "crates" / "patched" / version, apply)
    return f"patch.crates-io.{dependency}.path={json.dumps(str(patched))}"
