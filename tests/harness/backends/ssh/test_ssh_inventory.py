"""An inventory, whose every mistake is one sentence with the file, line and field; and offsets of the hosts' clocks."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from harness.backends.ssh_backend import KEPT_EVERY_NS, ClockReading, NodeClock
from harness.backends.ssh_inventory import BadInventory, Host, assign, read_inventory
from harness.run.refused_before_start import check_spec
from harness.spec import CLIENT_NODES, Spec, WrongSpec

RIGHT = """\
[defaults]
user = "admin"
key = "~/.ssh/lab"

[[host]]
name = "alpha"
address = "198.18.0.11"
role = "server"

[[host]]
name = "beta"
address = "beta.lab.example"
data_address = "198.18.0.12"
role = "server"
port = 2222
user = "root"

[[host]]
address = "198.18.0.13"
role = "client"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    return path


def test_a_right_one(tmp_path: Path) -> None:
    alpha, beta, third = read_inventory(written(tmp_path, RIGHT))
    assert alpha == Host("alpha", "198.18.0.11", "server", user="admin", key="~/.ssh/lab")
    assert (beta.user, beta.port, beta.data_address, beta.key) == ("root", 2222, "198.18.0.12", "~/.ssh/lab")
    assert (third.name, third.role) == ("198.18.0.13", "client")
    assert [str(alpha), str(third)] == ["alpha (198.18.0.11)", "198.18.0.13"]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('role = "client"', 'role = "clients"', 20, "role: Invalid enum value 'clients'"),
        ('role = "client"', "", 18, "the host 3: Object missing required field role"),
        ("port = 2222", "port = 0", 15, "port: Expected int >= 1"),
        ("port = 2222", "port = true", 15, "port: Expected int, got bool"),
        ("port = 2222", "prot = 2222", 15, "unknown field 'prot'; known: name, address, role"),
        ('"beta.lab.example"', '"-oProxyCommand=x"', 12, "address: must be an IPv4 address or the name of a host"),
        ('user = "admin"', 'user = ""', 2, "user: Expected str of length >= 1"),
        ('user = "admin"', 'name = "all"', 2, "name differs from host to host"),
        ('user = "admin"', 'folder = "/"', 2, "folder: must be an absolute path"),
        ('"198.18.0.12"', '"198.18.0.256"', 13, "data_address: must be an IPv4 address"),
        ('"198.18.0.12"', '"198.18.0.1; drop"', 13, "data_address: must be an IPv4 address"),
        ('user = "admin"', 'folder = "/var/../etc"', 2, "folder: must be an absolute path"),
        ('"198.18.0.13"', '"198.18.0.11"', 19, "another host, in line 7, has the same address"),
        ('name = "beta"', 'name = "alpha"', 11, "another host, in line 6, has the same name"),
        ("[defaults]", "[default]", 1, "there is no table 'default'"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    assert RIGHT.count(old) >= 1
    path = written(tmp_path, RIGHT.replace(old, new, 1))
    with pytest.raises(BadInventory, match=rf"^{re.escape(str(path))}, line {line}: {re.escape(words)}"):
        read_inventory(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "there is no [[host]]"),
        (b"host = 3\n", "line 1: there is no [[host]]"),
        (b"[[host]\n", "is not TOML: "),
        (b"\xff\xfe", "is not TOML: "),
    ],
)
def test_what_is_no_inventory(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "hosts.toml"
    path.write_bytes(content)
    with pytest.raises(BadInventory, match=re.escape(words)):
        read_inventory(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInventory, match=r"none\.toml cannot be read: No such file"):
        read_inventory(tmp_path / "none.toml")


def test_nodes_are_assigned_in_the_order_of_the_file(tmp_path: Path) -> None:
    hosts = read_inventory(written(tmp_path, RIGHT))
    assigned = assign(hosts, ("n1",), ("c1",), "hosts.toml")
    assert {node: host.name for node, host in assigned.items()} == {"n1": "alpha", "c1": "198.18.0.13"}
    words = (
        "hosts.toml: the run needs 3 hosts with role 'server', and the file has 2: add hosts, or choose fewer --nodes"
    )
    with pytest.raises(BadInventory, match=re.escape(words)):
        assign(hosts, ("n1", "n2", "n3"), ("c1",), "hosts.toml")


def test_a_spec_needs_an_inventory_exactly_where_the_backend_does(tmp_path: Path) -> None:
    path = str(written(tmp_path, RIGHT))
    with pytest.raises(WrongSpec, match="--backend ssh needs hosts: name the file that lists them with --inventory"):
        check_spec(Spec(backend="ssh"))
    with pytest.raises(WrongSpec, match=r"--inventory lists hosts of your own, .*: --backend ssh"):
        check_spec(Spec(backend="docker", inventory=path))
    with pytest.raises(WrongSpec, match="the run needs 2 hosts with role 'client', and the file has 1"):
        check_spec(Spec(backend="ssh", inventory=path, nodes=2))
    more = RIGHT + '\n[[host]]\naddress = "198.18.0.14"\nrole = "client"\n'
    check_spec(Spec(backend="ssh", inventory=str(written(tmp_path, more)), nodes=2))
    assert len(CLIENT_NODES) == 2


def test_the_command_that_repeats_a_run_names_the_inventory() -> None:
    spec = Spec(backend="ssh", inventory="hosts.toml", seed=4)
    assert spec.rerun() == "make test-partition SEED=4 BACKEND=ssh INVENTORY=hosts.toml"


MS, S = 1_000_000, 1_000_000_000


def test_without_a_reading_there_is_no_offset() -> None:
    with pytest.raises(ValueError, match="never read"):
        NodeClock().offset()


def test_one_reading_bounds_the_difference_within_its_round_trip() -> None:
    clock = NodeClock()
    clock.add(ClockReading(sent_ns=0, node_ns=5 * S, received_ns=2 * MS))
    offset = clock.offset()
    assert offset.ahead_ns == 5 * S - MS
    assert MS < offset.error_ns < 12 * MS


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_lies_within_the_bound_all_the_time(seed: int) -> None:
    """Clocks that drift, ways of different length there and back, and answers that come late."""
    rng = Random(seed)
    ahead_ns, drift = rng.randrange(-(10**15), 10**15), rng.uniform(-400e-6, 400e-6)
    clock, now_ns, truths = NodeClock(), 0, []
    while now_ns < 120 * S:
        there, back = (int(rng.expovariate(1 / (3 * MS))) + 1 for _ in range(2))
        read_at = now_ns + there
        truth = ahead_ns + int(read_at * drift)
        truths.append(truth)
        clock.add(ClockReading(now_ns, read_at + truth, read_at + back))
        now_ns += rng.randrange(S, KEPT_EVERY_NS)
    offset = clock.offset()
    assert all(abs(truth - offset.ahead_ns) <= offset.error_ns for truth in truths)


def test_late_answers_do_not_spoil_what_a_quick_one_showed() -> None:
    clock = NodeClock()
    for round_trip_ns in (400 * MS, 2 * MS, 900 * MS):
        clock.add(ClockReading(S, S + round_trip_ns, S + round_trip_ns))
    assert clock.offset().error_ns < 12 * MS
