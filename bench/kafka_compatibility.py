"""Measure what Kafka's own clients and their own tests find in the bundled KRaft.  Writes
docs/notebook/kafka-compatibility.md and docs/notebook/kafka-brokers-compatibility.md.

    python -m bench.kafka_compatibility            run all suites, write the page
    python -m bench.kafka_compatibility --only kafka-python,aiokafka
    python -m bench.kafka_compatibility --brokers  the same tests against Kafka, and Kafka's brokers on our controllers

Three nodes, each broker and controller, run on loopback.  These suites run against them:

    librdkafka      its own tests, in C, from the crate rdkafka-sys (built once, some minutes of CPU); against brokers
                    of Kafka, all tests that need no other settings and tools
    kafka-python    its own integration tests of administration, from its source distribution on PyPI
    aiokafka, confluent-kafka, kcat
                    the examples of administration in their documentation

The tests of kafka-python expect a single node, broker 0, and get one.  The sources are fetched with cargo and pip and
stored in the cache folder, like the last results of each suite, from which the page of --brokers is made.  Bundled
nodes store no data of topics, so tests that produce or consume fail, and the page lists them.  The exit status is 0 if
no test of administration fails; with --brokers, if both clusters pass the same tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, StrictUndefined

from bench.instruments.quorum_clusters import KRaft
from checkers.base.cache_folder import cache_folder
from harness.backends.builds import fetch_jars
from system_under_test.kafka.bundled import FEATURES, RELEASE
from system_under_test.kafka.process import BROKER_PORT, CLUSTER_ID, CONTROLLER_PORT, VERSION, KafkaProcess, jars_of
from system_under_test.kafka.wire import BROKERS_APART
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.versions import DESCRIBE_CLUSTER, requested
from system_under_test.system import OwnNode

ROOT = Path(__file__).parents[1]
INSTRUMENTS = ROOT / "bench" / "instruments"

DESCRIBED: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (INSTRUMENTS / "kafka_suites.toml").read_text(encoding="utf-8")
)
LIBRDKAFKA, KAFKA_PYTHON, CONFLUENT = "librdkafka", "kafka-python", "confluent-kafka"
CRATE: str = DESCRIBED[LIBRDKAFKA]["version"]
KAFKA_VERSION = "4.1.0"
"""Version of Kafka that the nodes claim in the tests."""

KNOWN_VERSION = "4.3.0"
"""The newest version of Kafka that this version of kafka-python distinguishes from older ones."""
TEST_LIMIT_S = 180
SUITE_LIMIT_S = 600

ADMIN, OTHERS, WITH_TOPICS = (DESCRIBED[LIBRDKAFKA][name] for name in ("admin", "others", "with_topics"))
PATIENCE = 4
"""Factor of the time limits in tests against brokers of Kafka, whose virtual machines compete with the tests for
CPU.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one test. outcome: passed, failed or skipped. why: one line for readers."""

    suite: str
    test: str
    outcome: str
    why: str = ""


Suite = Callable[[Path, list[str], bool], Iterator[Result]]
"""(folder, addresses of brokers, True if the brokers store data of topics) -> results."""


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
    """Return the first failure or reason to skip that the test runner reports, without colours."""
    found = _FAILED.search(output)
    line = found[1] or found[2] if found else output.strip().rpartition(b"\n")[2]
    return re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).strip()


def _built(folder: Path) -> Path:
    """Build librdkafka with its tests; return its folder."""
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
    """Run its integration tests.  The files that its source distribution lacks are stubbed, because a broker runs
    already.
    """
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
"""Selects tests that need no data: tests that administer groups and records begin by producing some."""
WITH_DATA = ("admin", "consumer", "producer")
"""Parts of its integration tests that run without security."""

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
    """Return a suite that makes its calls in a program; the program prints `call TAB reason of the failure`."""

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
    """Return the path of a Python with the clients."""
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
    """Run a command.  Raises SystemExit with the end of its output if it fails."""
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


OUTCOMES = ("passed", "failed", "skipped")
PAGE = ROOT / "docs" / "notebook" / "kafka-compatibility.md"
BESIDE = PAGE.with_name("kafka-brokers-compatibility.md")
KRAFT, KAFKA, BROKERS = "kraft", "kafka", "kafka-brokers"
"""Clusters: bundled nodes, nodes of Kafka, and brokers of Kafka on bundled controllers."""
WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--only", default=",".join(SUITES), help="comma-separated: " + ", ".join(SUITES))
    parser.add_argument("--brokers", action="store_true", help=f"run {KAFKA} and {BROKERS} instead of {KRAFT}")
    arguments = parser.parse_args(argv)
    chosen = arguments.only.split(",")
    if unknown := [name for name in chosen if name not in SUITES]:
        print(f"there is no suite {unknown[0]!r}; there are: {', '.join(SUITES)}", file=sys.stderr)
        return 3
    found = {on: results_on(on, chosen) for on in ((KAFKA, BROKERS) if arguments.brokers else (KRAFT,))}
    if arguments.brokers:
        kept = {on: [each for name in SUITES for each in newest_results(on, name)] for on in found}
        BESIDE.write_text(page_of_brokers(kept, [name for name in SUITES if newest_results(BROKERS, name)]))
        return 1 if differing(found) else 0
    if set(chosen) == set(SUITES):
        PAGE.write_text(page(found[KRAFT]))
    return 1 if any(each.outcome == "failed" and each.test not in OTHERS for each in found[KRAFT]) else 0


def results_on(on: str, suites: Sequence[str]) -> Sequence[Result]:
    """Run these suites, each against a new cluster of a kind."""
    folder = _folder()
    results: list[Result] = []
    for name in suites:
        print(f"{name} on {on} …", flush=True)
        with cluster((0,) if name == KAFKA_PYTHON else (1, 2, 3), on) as bootstrap:
            found = list(SUITES[name](folder, bootstrap, on != KRAFT))
        results += found
        _kept(on, name).write_text(json.dumps([asdict(each) for each in found]))
        print(f"{name}: {sum(each.outcome == 'passed' for each in found)} of {len(found)} passed", flush=True)
    for each in results:
        if each.outcome == "failed":
            print(f"failed: {each.suite} {each.test} {each.why}")
    return results


def newest_results(on: str, suite: str) -> Sequence[Result]:
    """Return the results of a suite's last run on this machine; [] if there was none."""
    kept = _kept(on, suite)
    return [Result(**each) for each in json.loads(kept.read_text())] if kept.exists() else []


def _kept(on: str, suite: str) -> Path:
    return _folder() / f"{suite}-on-{on}.json"


def _folder() -> Path:
    folder = cache_folder() / "outside"
    folder.mkdir(exist_ok=True)
    return folder


# -- The cluster


@contextmanager
def cluster(ids: Sequence[int], on: str) -> Iterator[list[str]]:
    """Start nodes on loopback, yield the addresses of their brokers, and end the nodes with the block."""
    folder = Path(tempfile.mkdtemp(prefix="kafka-compatibility-"))
    settings = {"cluster_id": CLUSTER_ID, "process.roles": "broker,controller"}
    apart = {"cluster_id": CLUSTER_ID, "process.roles": "controller", "brokers": {"features": FEATURES}}
    first = ids[0] + (BROKERS_APART if on == BROKERS else 0)
    bundled = KRaft(folder, 0 if on == KAFKA else len(ids), apart if on == BROKERS else settings, first)
    of_kafka: list[subprocess.Popen[bytes]] = []
    try:
        for server in bundled.servers:
            bundled.start(server)
        controllers = {bundled.node_id(server): bundled.address(server) for server in bundled.servers}
        addresses = list(controllers.values())
        if on != KRAFT:
            hosts = {number: f"127.0.{os.getpid() % 250}.{number + 1}" for number in ids}
            addresses = [f"{host}:{BROKER_PORT}" for host in hosts.values()]
            of_kafka += asyncio.run(_nodes_of_kafka(folder, hosts, controllers))
        asyncio.run(_registered(addresses))
        yield addresses
    finally:
        bundled.close()
        for process in of_kafka:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _started(argv: Sequence[str], home: Path) -> subprocess.Popen[bytes]:
    with (home / "output.log").open("wb") as output:
        return subprocess.Popen(argv, cwd=home, stdout=output, stderr=output)


@dataclass(frozen=True, slots=True)
class _Home:
    """A local folder in which a process of Kafka runs as on a node."""

    address: str
    data_dir: str

    async def write(self, name: str, text: str) -> None:
        (Path(self.data_dir) / name).write_text(text)


async def _nodes_of_kafka(
    folder: Path, hosts: Mapping[int, str], controllers: Mapping[int, str]
) -> list[subprocess.Popen[bytes]]:
    """Start a broker of Kafka on each host.  controllers: bundled controllers; if empty, each broker is also a
    controller.
    """
    jars = fetch_jars(jars_of("", ""), lambda _: None, threading.Event())
    roles, release = (("broker",), ("--release-version", RELEASE)) if controllers else (("broker", "controller"), ())
    controllers = controllers or {number: f"{host}:{CONTROLLER_PORT}" for number, host in hosts.items()}
    running = []
    for number, host in hosts.items():
        home = folder / f"broker-{number}"
        home.mkdir()
        settings = {"auto.create.topics.enable": "true", "num.partitions": 4, **WITH_ACLS}
        process = KafkaProcess(
            number, roles, controllers, replicas=min(3, len(hosts)), settings=settings, format_options=release
        )
        line = await process.command(cast(OwnNode, _Home(host, str(home))))
        running.append(_started(["env", f"KRUCIBLE_JARS={jars}", "bash", "-c", line], home))
    return running


async def _registered(addresses: Sequence[str], limit_s: float = 120.0) -> None:
    """Wait until every node lists all brokers as alive.  Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        for address in addresses:
            while await _brokers_known(address) < len(addresses):  # noqa: ASYNC110 - another process knows
                await asyncio.sleep(0.2)


async def _brokers_known(address: str) -> int:
    """Return the number of brokers that the node at `address` lists as alive; 0 if it does not answer."""
    host, _, port = address.partition(":")
    connection = Connection(host, int(port), "compatibility")
    try:
        answer = await connection.ask(requested(DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False}))
    except OSError:
        return 0
    finally:
        connection.close()
    return len(answer.brokers)


# -- The page


def page(results: Sequence[Result]) -> str:
    return _rendered(
        "kafka-compatibility.md.j2",
        presented=KAFKA_VERSION,
        suites=DESCRIBED,
        results=results,
    )


def page_of_brokers(found: Mapping[str, Sequence[Result]], suites: Sequence[str]) -> str:
    outcomes = [_outcomes(results) for results in found.values()]
    chosen = {
        title: [[one.get(key, Result(*key, "not run")) for one in outcomes] for key in keys]
        for title, keys in (("Other outcome", differing(found)), ("Passed by neither", _passed_by_neither(found)))
    }
    names = {
        "kafka": KAFKA,
        "brokers": BROKERS,
        "version": VERSION,
        "crate": CRATE,
        "limit_s": TEST_LIMIT_S,
    }
    template = "kafka-brokers-compatibility.md.j2"
    return _rendered(template, found=found.values(), suites=suites, chosen=chosen, **names)


def _rendered(template: str, **values: object) -> str:
    made = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    made.filters["cell"] = _cell
    return made.from_string((INSTRUMENTS / template).read_text()).render(outcomes=OUTCOMES, **values)


def _outcomes(results: Sequence[Result]) -> Mapping[tuple[str, str], Result]:
    return {(each.suite, each.test): each for each in results}


def differing(found: Mapping[str, Sequence[Result]]) -> Sequence[tuple[str, str]]:
    """Return (suite, test) of each test whose outcomes differ between the clusters."""
    one, other = (_outcomes(results) for results in found.values())
    every = {**one, **other}
    return [key for key in every if key not in one or key not in other or one[key].outcome != other[key].outcome]


def _passed_by_neither(found: Mapping[str, Sequence[Result]]) -> Sequence[tuple[str, str]]:
    apart = {*differing(found)}
    return [key for key, one in _outcomes(found[KAFKA]).items() if one.outcome != "passed" and key not in apart]


def _cell(words: str) -> str:
    """Return one line of a table, without addresses and random names, so the page is the same each time."""
    words = re.sub(r"127(\.\d+){3}:\d+", "a broker", words)
    words = re.sub(r"(rnd)[0-9a-f]{8,}", r"\1…", words)
    words = words.replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= 140 else words[:139] + "…"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
