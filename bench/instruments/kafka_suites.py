"""External test suites of Kafka's clients for `bench.kafka_compatibility`: each fetches its tests, runs them against a
cluster and yields the results.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system_under_test.kafka.process import VERSION

DESCRIBED: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("kafka_suites.toml").read_text(encoding="utf-8")
)
LIBRDKAFKA, KAFKA_PYTHON, CONFLUENT = "librdkafka", "kafka-python", "confluent-kafka"
CRATE: str = DESCRIBED[LIBRDKAFKA]["version"]
KAFKA_VERSION = "4.1.0"
"""Version of Kafka that the nodes claim in the tests."""

KNOWN_VERSION = "4.3.0"
"""The newest version of Kafka that this kafka-python can tell from older ones."""
TEST_LIMIT_S = 180
SUITE_LIMIT_S = 600

ADMIN, OTHERS, WITH_TOPICS = (DESCRIBED[LIBRDKAFKA][name] for name in ("admin", "others", "with_topics"))
PATIENCE = 4
"""Factor of the time limits in tests against brokers of Kafka, whose virtual machines share this one."""


@dataclass(frozen=True, slots=True)
class Result:
    """outcome: passed, failed or skipped. why: one line for readers."""

    suite: str
    test: str
    outcome: str
    why: str = ""


Suite = Callable[[Path, list[str], bool], Iterator[Result]]
"""Folder, addresses of brokers, whether they keep data of topics -> results."""


# -- librdkafka


def librdkafka(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
    tests = _built(folder) / "tests"
    config, report = folder / "test.conf", folder / "test.json"
    patience = PATIENCE if with_data else 1
    config.write_text(f"bootstrap.servers={','.join(bootstrap)}\ntest.timeout.multiplier={patience}\n")
    for name in WITH_TOPICS if with_data else [*ADMIN, *OTHERS]:
        number, _, part = name.partition(" ")
        environment = {
            **os.environ,
            "RDKAFKA_TEST_CONF": str(config),
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "TESTS": number,
            "TEST_KAFKA_VERSION": VERSION if with_data else KAFKA_VERSION,
            "TEST_REPORT": str(report),
        } | ({"SUBTESTS": part} if part else {})
        report.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                ["./test-runner", "-p1"], cwd=tests, env=environment, capture_output=True, timeout=TEST_LIMIT_S
            )
            passed, said = done.returncode == 0, done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            passed, said = False, (late.stdout or b"") + b"\nno end within the limit"
        ran = report.exists() and b'"PASSED"' in b"".join(_STATES.findall(report.read_bytes()))
        outcome = "failed" if not passed else "passed" if ran else "skipped"
        yield Result(LIBRDKAFKA, name, outcome, "" if outcome == "passed" else _why(said))


_STATES = re.compile(rb'"name": "\d[^"]*", "state": ("\w+")')
_FAILED = re.compile(rb"###[^\n]*failed at[^\n]*###\S*\n([^\n]+)|SKIPPING TEST: ([^\n\x1b]+)")


def _why(output: bytes) -> str:
    """The first failure or reason to skip that the runner of the tests reports, without colours."""
    found = _FAILED.search(output)
    line = found[1] or found[2] if found else output.strip().rpartition(b"\n")[2]
    return re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).strip()


def _built(folder: Path) -> Path:
    """The folder of librdkafka with its tests built."""
    source = folder / f"librdkafka-{CRATE.partition('+')[2]}"
    if (source / "tests" / "test-runner").exists():
        return source
    fetched = folder / "fetch"
    (fetched / "src").mkdir(parents=True, exist_ok=True)
    (fetched / "src" / "lib.rs").write_text("")
    (fetched / "Cargo.toml").write_text(
        f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nrdkafka-sys = "={CRATE}"\n'
    )
    _run(["cargo", "vendor", "--versioned-dirs", "vendor"], fetched)
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(fetched / "vendor" / f"rdkafka-sys-{CRATE}" / "librdkafka", source)
    (source / "lds-gen.py").chmod(0o755)
    _run(["bash", "./configure", "--disable-ssl", "--disable-gssapi", "--disable-curl"], source)
    for part in (["-C", "src"], ["-C", "src-cpp"], ["-C", "tests", "build"]):
        _run(["nice", "-n", "10", "make", "-j2", *part], source)
    return source


# -- Clients in Python, in a separate environment


def kafka_python(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
    """Its integration tests; what its source distribution lacks is stubbed: the broker runs already."""
    python = _environment(folder)
    version = DESCRIBED[KAFKA_PYTHON]["version"]
    source = folder / f"kafka_python-{version}"
    if not source.exists():
        requirement = f"kafka-python=={version}"
        _run([python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", requirement], folder)
        shutil.unpack_archive(folder / f"kafka_python-{version}.tar.gz", folder)
    (source / "test" / "__init__.py").write_text("")
    (source / "test" / "service.py").write_text(_SERVICE)
    (source / "conftest.py").write_text(_CONFTEST)
    report = folder / "kafka-python.xml"
    report.unlink(missing_ok=True)
    presented = KNOWN_VERSION if with_data else KAFKA_VERSION
    environment = {"KAFKA_URI": f"kafka://{bootstrap[0]}", "KAFKA_VERSION": presented, "KAFKA_ROOT": "/tmp"}
    files = [f"test/integration/test_{part}_integration.py" for part in (WITH_DATA if with_data else ("admin",))]
    argv = [python, "-m", "pytest", "-q", *files, f"--junitxml={report}"]
    argv += ["--timeout=60", "--timeout-method=signal", "-p", "no:cacheprovider"]
    argv += [] if with_data else ["-k", WITHOUT_DATA]
    with (folder / "kafka-python.log").open("wb") as output:
        try:
            subprocess.run(
                argv, cwd=source, env=os.environ | environment, stdout=output, stderr=output, timeout=SUITE_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            yield Result(KAFKA_PYTHON, "all", "failed", "no end within the limit")
            return
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if problem is None else "skipped" if problem.tag == "skipped" else "failed"
        why = "" if problem is None else (problem.get("message") or "").strip().partition("\n")[0]
        yield Result(KAFKA_PYTHON, case.get("name", ""), outcome, why)


WITHOUT_DATA = "not delete_groups and not delete_records and not group_exists"
"""The tests that administer groups and records begin by producing some."""
WITH_DATA = ("admin", "consumer", "producer")
"""Files of its integration tests that need no other security than none."""

_SERVICE = '''"""A broker that runs already: what the source distribution lacks."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def start(self): ...
    def stop(self): ...
    def wait_for(self, *args, **kwargs): ...


class SpawnedService(ExternalService): ...
'''

_CONFTEST = """import py

from test.integration.fixtures import KafkaFixture, ZookeeperFixture


def _open(self):
    self.tmp_dir = py.path.local.mkdtemp()
    self.start()


KafkaFixture.open = _open
ZookeeperFixture.instance = classmethod(lambda cls, host=None, port=None, external=False: None)
"""


def calling(suite: str) -> Suite:
    """Make the calls of a suite, by a program that prints `call TAB why it failed`."""

    def results(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
        argv = [_environment(folder), "-c", _CALLING, bootstrap[0], json.dumps(DESCRIBED[suite])]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TEST_LIMIT_S)
        for line in done.stdout.splitlines():
            name, _, why = line.partition("\t")
            yield Result(suite, name, "failed" if why else "passed", why)
        if done.returncode:
            yield Result(suite, "script", "failed", done.stderr.strip().rpartition("\n")[2])

    return results


_CALLING = """
import asyncio, inspect, json, sys, time

names, suite = {"ADDRESS": sys.argv[1], "LATER": ()}, json.loads(sys.argv[2])
until = time.monotonic() + 40

async def called(expression):
    answer = eval(expression.strip(), names)
    answer = await answer if inspect.isawaitable(answer) else answer
    for future in answer.values() if isinstance(answer, dict) else [answer]:
        if hasattr(future, "result"):
            future.result(20)
    return "".join(str(error) for error in getattr(answer, "topic_errors", ()) if error[1])

async def why_failed(expression):
    while True:
        try:
            return await called(expression)
        except Exception as problem:
            code = getattr(problem.args[0] if problem.args else None, "code", lambda: None)()
            if code not in names["LATER"] or time.monotonic() > until:
                return repr(problem)
            time.sleep(0.1)

async def main():
    exec(suite["prepare"], names)
    await called(suite.get("begin", "None"))
    for name, expression in suite["calls"].items():
        print(name, await why_failed(expression), sep="\\t")
    await called(suite.get("end", "None"))

asyncio.run(main())
"""


def kcat(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
    if shutil.which("kcat") is None:
        yield Result("kcat", "-L", "skipped", "kcat is not installed")
        return
    done = subprocess.run(["kcat", "-L", "-b", bootstrap[0]], capture_output=True, text=True, timeout=TEST_LIMIT_S)
    passed = done.returncode == 0 and f"{len(bootstrap)} brokers" in done.stdout
    yield Result("kcat", "-L", "passed" if passed else "failed", "" if passed else done.stderr.strip())


def _environment(folder: Path) -> str:
    """A Python with the clients."""
    home = folder / "clients"
    python = home / "bin" / "python"
    clients = [f"{name}=={DESCRIBED[name]['version']}" for name in (KAFKA_PYTHON, "aiokafka", CONFLUENT)]
    complete = home / "complete"
    if not complete.exists() or complete.read_text().split() != clients:
        _run([sys.executable, "-m", "venv", "--clear", str(home)], folder)
        wanted = ["pytest", "pytest-timeout", "pytest-mock", "py", *clients]
        _run([str(python), "-m", "pip", "install", "-q", *wanted], folder)
        complete.write_text("\n".join(clients))
    return str(python)


def _run(argv: Sequence[str], folder: Path) -> None:
    """Raises SystemExit with the last words of a command that fails."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


SUITES: Mapping[str, Suite] = {
    LIBRDKAFKA: librdkafka,
    KAFKA_PYTHON: kafka_python,
    "aiokafka": calling("aiokafka"),
    CONFLUENT: calling(CONFLUENT),
    "kcat": kcat,
}
