"""Programs in Rust: cargo builds each on this machine, once, at the versions that its Cargo.lock pins.

A library has no server to start.  A small program embeds it and serves a port; this makes that program.  What is built
is kept in the cache, under a hash of the sources, the patches and the compiler.  All versions of a program share one
target folder there, so a patch or a change of the program compiles little.  The folder may be removed at any time.

A patch is applied to a copy of a dependency, which then takes its place: that is how a cause is proven.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from checkers.base.cache_folder import cache_folder
from harness.backends.backend import BackendUnavailable
from harness.backends.node_code import digest
from harness.backends.watched_commands import run_watched
from system_under_test.subject import Crate

_FETCH_S = 900.0
"""Seconds in which cargo must fetch the sources of a program's dependencies."""
_PROGRESS = ("CARGO_TERM_PROGRESS_WHEN=always", "CARGO_TERM_PROGRESS_WIDTH=100", "CARGO_TERM_COLOR=never")


def build_all(
    crates: Mapping[str, Crate], beside: Path, progress: Callable[[str], None], stop: threading.Event
) -> dict[str, Path]:
    """Path on the node -> the program that cargo built for it.  beside: the folder of the system's file.

    Blocks, for minutes where a library is new.  Raises BackendUnavailable in one sentence, Interrupted after `stop`.
    """
    return {there: _build(crate, beside / crate.folder, progress, stop) for there, crate in crates.items()}


def _build(crate: Crate, folder: Path, progress: Callable[[str], None], stop: threading.Event) -> Path:
    name = _name_of(folder)
    if shutil.which("cargo") is None:
        raise BackendUnavailable(
            f"{name} is a program in Rust, and there is no cargo on this machine to build it: install Rust (rustup.rs)."
        )
    home = cache_folder() / "crates" / f"{name}-{_version_of(crate, folder)}"
    program = home / name
    if program.is_file():
        return program
    progress(f"building {name} with cargo, once; a large library takes minutes")
    unfinished = home.with_suffix(f".{os.getpid()}")
    try:
        shutil.copytree(folder, unfinished / "source", ignore=shutil.ignore_patterns("target"))
        patched = [
            argument
            for dependency, patch in crate.patches.items()
            for argument in ("--config", _patch(dependency, folder / patch, unfinished, stop))
        ]
        target = home.with_name(f"target-{name}")
        argv = ["env", *_PROGRESS, f"CARGO_TARGET_DIR={target}", "cargo", "build", "--release", *patched]
        argv += ["--manifest-path", str(unfinished / "source" / "Cargo.toml")]
        argv += ["--offline"] if patched else ["--locked"]  # a patch takes its crate's checksum out of the lock
        log = home.with_name(f"{name}.log")
        status, tail = run_watched(argv, stop, lambda line: progress(f"{name}: {line.strip()}"), log)
        if status != 0:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error")]
            raise BackendUnavailable(f"cargo could not build {name} ({(lines or [tail])[0]}): see {log}.")
        built = unfinished / name
        shutil.copy(target / "release" / name, built)
        home.mkdir(exist_ok=True)
        built.replace(program)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return program


def _name_of(folder: Path) -> str:
    """The name of the package, which is that of its program.  Raises BackendUnavailable."""
    try:
        name = tomllib.loads((folder / "Cargo.toml").read_text())["package"]["name"]
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as problem:
        raise BackendUnavailable(f"{folder / 'Cargo.toml'} names no package: {problem}.") from problem
    return str(name)


def _version_of(crate: Crate, folder: Path) -> str:
    """A hash of all that decides what the program is."""
    compiler = subprocess.run(["cargo", "--version", "--verbose"], capture_output=True, check=False, timeout=60).stdout
    parts = [compiler]
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and inside.parts[0] != "target" and path.suffix != ".patch":
            parts += [str(inside).encode(), path.read_bytes()]
    for dependency, patch in sorted(crate.patches.items()):
        parts += [dependency.encode(), (folder / patch).read_bytes()]
    return digest(*parts)


def _patch(dependency: str, patch: Path, unfinished: Path, stop: threading.Event) -> str:
    """Patch a copy of a dependency's source; the configuration that makes cargo take it.  Raises BackendUnavailable."""
    manifest = str(unfinished / "source" / "Cargo.toml")
    argv = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", manifest]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=_FETCH_S)
    if done.returncode != 0:
        words = (done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
        raise BackendUnavailable(f"cargo could not fetch the sources of {unfinished.name} ({words}).")
    found = [each for each in json.loads(done.stdout)["packages"] if each["name"] == dependency]
    if len(found) != 1:
        raise BackendUnavailable(f"{patch.name} is for {dependency}, of which the program has {len(found)} versions.")
    version = f"{dependency}-{found[0]['version']}-{digest(patch.read_bytes())}"
    patched = cache_folder() / "crates" / "patched" / version
    if patched.is_dir():  # at one place for all programs: what depends on it is then compiled once
        return _config(dependency, patched)
    copy = unfinished / "patched" / dependency
    shutil.copytree(Path(found[0]["manifest_path"]).parent, copy)
    if shutil.which("patch") is None:
        raise BackendUnavailable(f"There is no program `patch` on this machine to apply {patch.name}: install it.")
    status, tail = run_watched(
        ["patch", "--strip=1", "--fuzz=0", "--batch", "--directory", str(copy), "--input", str(patch.absolute())], stop
    )
    if status != 0:
        raise BackendUnavailable(f"{patch.name} does not fit {dependency} {found[0]['version']} ({tail}).")
    patched.parent.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):  # another run was faster
        copy.rename(patched)
    return _config(dependency, patched)


def _config(dependency: str, folder: Path) -> str:
    return f"patch.crates-io.{dependency}.path={json.dumps(str(folder))}"
