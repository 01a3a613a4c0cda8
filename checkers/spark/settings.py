"""Settings of Spark, inside this process and on a cluster, where nodes may freeze and masters may not answer.

A frozen executor costs the most time.  Its tasks do not fail, so Spark repeats none of them until it misses the
executor's heartbeat.  Spark waits for the heartbeat for two minutes by default, and for ten seconds with these
settings.  They change only the heartbeat, because `spark.network.timeout` would also shorten all other time-outs.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checkers.spark.bundle import BUNDLE_VARIABLE, MODULE
from checkers.spark.daemon import MEMORY_VARIABLE
from checkers.spark.java import SparkUnavailable

LOCAL = "local[*,4]"
"""Master with all cores and four attempts per task.  With local[*], one killed worker would fail the whole job."""

CONNECT_S_MAX = 5.0
MASTER_PORT = 7077

_STANDALONE = re.compile(r"\[?(?P<host>[\w.:-]+?)\]?:(?P<port>\d{1,5})")
_ROOT = Path(__file__).resolve().parents[2]
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_NO_LOGGER = "-Dslf4j.provider=org.slf4j.helpers.NOP_FallbackServiceProvider"
"""Option that disables logging.  Loading Log4j takes a tenth of the virtual machine's start, and exceptions reach the
driver without a logger.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of Spark.

    fixed: settings that a user cannot change
    defaults: settings that a user's spark-defaults.conf (SPARK_CONF_DIR) may change
    """

    fixed: Mapping[str, str]
    defaults: Mapping[str, str] = field(default_factory=dict)


def problem_with(master: str) -> str:
    """Return the reason, in one sentence, why this is no valid address of a Spark master; "" if it is valid."""
    if re.fullmatch(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|k8s://\S+", master):
        return ""
    if master.startswith("spark://") and all(map(_STANDALONE.fullmatch, master.removeprefix("spark://").split(","))):
        return ""
    forms = f"spark://host:{MASTER_PORT}, k8s://https://host:port, yarn or local[*,4]"
    return f"{master!r} is no address of a Spark master; addresses look like {forms}"


def is_local(master: str) -> bool:
    """Return True if Spark runs inside this process, and not in separate processes as with `local-cluster`."""
    return master == "local" or master.startswith("local[")


def local_settings(master: str, java_options: Sequence[str]) -> Settings:
    return Settings(
        _of_every_master(master, [*java_options, _NO_LOGGER])
        | {
            "spark.driver.memory": "512m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.python.daemon.module": "checkers.spark.daemon",
            "spark.python.unix.domain.socket.enabled": "true",  # over TCP each task waits 40 ms for a delayed ACK
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), *sys.path])),
            "spark.executorEnv.PYTHONSAFEPATH": "1",  # do not import, for example, socket.py from the working folder
        }
    )


def cluster_settings(master: str, java_options: Sequence[str], boot: Path, bundle: Path) -> Settings:
    """Return the settings for a cluster.

    boot: the file MODULE.py, which nodes start
    bundle: the file that MODULE.py unpacks on the nodes
    """
    fixed = _of_every_master(master, java_options) | {
        "spark.files": f"{boot},{bundle}",
        "spark.python.daemon.module": MODULE,
        f"spark.executorEnv.{BUNDLE_VARIABLE}": bundle.name,
    }
    if named := os.environ.get(MEMORY_VARIABLE):
        fixed[f"spark.executorEnv.{MEMORY_VARIABLE}"] = named
    defaults = {
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": _LIGHT,
        "spark.executor.heartbeatInterval": "2s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "10s",
        "spark.network.timeoutInterval": "2s",
        "spark.task.maxFailures": "4",
    }
    if host := _address_towards(master):
        defaults["spark.driver.host"] = host
    return Settings(fixed, defaults)


def await_master(master: str) -> None:
    """Raise SparkUnavailable if no standalone master answers at its address.  Spark itself would try for a minute.

    master: the address of one or several masters, at least one of which must answer
    """
    addresses = _addresses(master)
    problems = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout=CONNECT_S_MAX).close()
        except OSError as problem:
            problems.append(f"{host}:{port}: {problem.strerror or problem}")
        else:
            return
    if problems:
        raise SparkUnavailable(f"no Spark master answers at {master} ({'; '.join(problems)})")


def _of_every_master(master: str, java_options: Sequence[str]) -> dict[str, str]:
    return {
        "spark.master": master,
        "spark.app.name": "krucible",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(java_options),
    }


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return (host, port) of each master of a standalone cluster; empty for any other kind of cluster."""
    if not master.startswith("spark://"):
        return []
    found = map(_STANDALONE.fullmatch, master.removeprefix("spark://").split(","))
    return [(one["host"], int(one["port"])) for one in found if one is not None]


def _address_towards(master: str) -> str | None:
    """Return this machine's address towards a standalone master; executors connect to the driver at this address.

    Returns None for any other kind of cluster.
    """
    for host, port in _addresses(master):
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connect() on UDP sends no packet
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None
