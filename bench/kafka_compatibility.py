"""Measure what Kafka's own clients and their own tests find of the bundled KRaft: makes
docs/notebook/kafka-compatibility.md and docs/notebook/kafka-brokers-compatibility.md.

    python -m bench.kafka_compatibility            run all, write the page
    python -m bench.kafka_compatibility --only kafka-python,aiokafka
    python -m bench.kafka_compatibility --brokers  the same tests against Kafka, and Kafka's brokers on our controllers

Three nodes, each broker and controller, run on loopback.  Against them run:

    librdkafka      its own tests, in C, from the crate rdkafka-sys (built once, some minutes of CPU); against brokers
                    of Kafka all that need no other settings and tools
    kafka-python    its own integration tests of administration, from its source distribution on PyPI
    aiokafka, confluent-kafka, kcat
                    the admin work of their documents

The tests of kafka-python are written for one node, broker 0, and have it.  The sources are fetched with cargo and pip
and kept under the cache folder, as are the last results of each suite, from which the page of --brokers is made.
Bundled nodes keep no data of topics.  So tests that produce or consume fail, and the page says which.  Exit status: 0
if no test of administration fails; with --brokers, if both clusters pass the same.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from jinja2 import Environment, StrictUndefined

from bench.instruments import kafka_suites
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
    parser.add_argument(
        "--only", default=",".join(kafka_suites.SUITES), help="comma-separated: " + ", ".join(kafka_suites.SUITES)
    )
    parser.add_argument("--brokers", action="store_true", help=f"run {KAFKA} and {BROKERS} instead of {KRAFT}")
    arguments = parser.parse_args(argv)
    chosen = arguments.only.split(",")
    if unknown := [name for name in chosen if name not in kafka_suites.SUITES]:
        print(f"there is no suite {unknown[0]!r}; there are: {', '.join(kafka_suites.SUITES)}", file=sys.stderr)
        return 3
    found = {on: results_on(on, chosen) for on in ((KAFKA, BROKERS) if arguments.brokers else (KRAFT,))}
    if arguments.brokers:
        kept = {on: [each for name in kafka_suites.SUITES for each in newest_results(on, name)] for on in found}
        BESIDE.write_text(
            page_of_brokers(kept, [name for name in kafka_suites.SUITES if newest_results(BROKERS, name)])
        )
        return 1 if differing(found) else 0
    if set(chosen) == set(kafka_suites.SUITES):
        PAGE.write_text(page(found[KRAFT]))
    return 1 if any(each.outcome == "failed" and each.test not in kafka_suites.OTHERS for each in found[KRAFT]) else 0


def results_on(on: str, suites: Sequence[str]) -> Sequence[kafka_suites.Result]:
    """Run these suites, each against a fresh cluster of a kind."""
    folder = _folder()
    results: list[kafka_suites.Result] = []
    for name in suites:
        print(f"{name} on {on} …", flush=True)
        with cluster((0,) if name == kafka_suites.KAFKA_PYTHON else (1, 2, 3), on) as bootstrap:
            found = list(kafka_suites.SUITES[name](folder, bootstrap, on != KRAFT))
        results += found
        _kept(on, name).write_text(json.dumps([asdict(each) for each in found]))
        print(f"{name}: {sum(each.outcome == 'passed' for each in found)} of {len(found)} passed", flush=True)
    for each in results:
        if each.outcome == "failed":
            print(f"failed: {each.suite} {each.test} {each.why}")
    return results


def newest_results(on: str, suite: str) -> Sequence[kafka_suites.Result]:
    """Return the results of a suite's last run on this machine, nothing if there was none."""
    kept = _kept(on, suite)
    return [kafka_suites.Result(**each) for each in json.loads(kept.read_text())] if kept.exists() else []


def _kept(on: str, suite: str) -> Path:
    return _folder() / f"{suite}-on-{on}.json"


def _folder() -> Path:
    folder = cache_folder() / "outside"
    folder.mkdir(exist_ok=True)
    return folder


# -- The cluster


@contextmanager
def cluster(ids: Sequence[int], on: str) -> Iterator[list[str]]:
    """Start nodes on loopback, yield the addresses of their brokers, and end them with the block."""
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
    """A folder of this machine, in which a process of Kafka runs as on a node."""

    address: str
    data_dir: str

    async def write(self, name: str, text: str) -> None:
        (Path(self.data_dir) / name).write_text(text)


async def _nodes_of_kafka(
    folder: Path, hosts: Mapping[int, str], controllers: Mapping[int, str]
) -> list[subprocess.Popen[bytes]]:
    """Start a broker of Kafka on each host.  controllers: bundled ones; if there are none, each broker is one."""
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
    """Wait until every node names all brokers as alive.  Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        for address in addresses:
            while await _brokers_known(address) < len(addresses):  # noqa: ASYNC110 - another process knows
                await asyncio.sleep(0.2)


async def _brokers_known(address: str) -> int:
    """Return how many brokers the node at `address` names as alive; 0 if it does not answer."""
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


def page(results: Sequence[kafka_suites.Result]) -> str:
    return _rendered(
        "kafka-compatibility.md.j2",
        presented=kafka_suites.KAFKA_VERSION,
        suites=kafka_suites.DESCRIBED,
        results=results,
    )


def page_of_brokers(found: Mapping[str, Sequence[kafka_suites.Result]], suites: Sequence[str]) -> str:
    outcomes = [_outcomes(results) for results in found.values()]
    chosen = {
        title: [[one.get(key, kafka_suites.Result(*key, "not run")) for one in outcomes] for key in keys]
        for title, keys in (("Other outcome", differing(found)), ("Passed by neither", _passed_by_neither(found)))
    }
    names = {
        "kafka": KAFKA,
        "brokers": BROKERS,
        "version": VERSION,
        "crate": kafka_suites.CRATE,
        "limit_s": kafka_suites.TEST_LIMIT_S,
    }
    template = "kafka-brokers-compatibility.md.j2"
    return _rendered(template, found=found.values(), suites=suites, chosen=chosen, **names)


def _rendered(template: str, **values: object) -> str:
    made = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    made.filters["cell"] = _cell
    return made.from_string((INSTRUMENTS / template).read_text()).render(outcomes=OUTCOMES, **values)


def _outcomes(results: Sequence[kafka_suites.Result]) -> Mapping[tuple[str, str], kafka_suites.Result]:
    return {(each.suite, each.test): each for each in results}


def differing(found: Mapping[str, Sequence[kafka_suites.Result]]) -> Sequence[tuple[str, str]]:
    """Return suite and name of each test whose outcomes differ between the clusters."""
    one, other = (_outcomes(results) for results in found.values())
    every = {**one, **other}
    return [key for key in every if key not in one or key not in other or one[key].outcome != other[key].outcome]


def _passed_by_neither(found: Mapping[str, Sequence[kafka_suites.Result]]) -> Sequence[tuple[str, str]]:
    apart = {*differing(found)}
    return [key for key, one in _outcomes(found[KAFKA]).items() if one.outcome != "passed" and key not in apart]


def _cell(words: str) -> str:
    """One line of a table; no address and no random name, so that the page is the same each time."""
    words = re.sub(r"127(\.\d+){3}:\d+", "a broker", words)
    words = re.sub(r"(rnd)[0-9a-f]{8,}", r"\1…", words)
    words = words.replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= 140 else words[:139] + "…"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
