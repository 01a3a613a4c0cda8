"""Hosts that cannot be used: each is refused with one sentence that says what is wrong and what to do."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from docker_things import needs_docker
from ssh_hosts import SshHosts

from harness.backends.backend import BackendUnavailable, ClusterSpec
from harness.backends.ssh_backend import SshBackend
from harness.backends.ssh_inventory import Host
from harness.backends.ssh_visit import missing, reach
from nemesis.cluster import DISK, CannotInject
from system_under_test.subject import Needs

pytestmark = needs_docker


@pytest.fixture
def host(hosts: SshHosts) -> Host:
    known = str(hosts.known_hosts)
    return Host("beta", hosts.address_of["beta"], "server", key=str(hosts.key), known_hosts=known)


def refused(host: Host, needs: Needs | None = None) -> str:
    with pytest.raises(BackendUnavailable) as refusal:
        reach(host, needs or Needs()).connection.close()
    return str(refusal.value)


def make_key(path: Path, passphrase: str = "") -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)
    return str(path)


def test_an_unknown_host_is_refused_with_the_line_to_add(host: Host, hosts: SshHosts, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    stranger = replace(host, known_hosts=str(known))
    words = refused(stranger)
    shown = hosts.run("beta", "ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert f"beta ({host.address}): its host key is not known, {shown}." in words
    assert f"add this line to {known}:" in words
    known.write_text(words.splitlines()[-1] + "\n")
    reach(stranger, Needs()).connection.close()


def test_a_host_that_shows_another_key_is_refused(host: Host, tmp_path: Path) -> None:
    kind, key, *_ = Path(make_key(tmp_path / "other") + ".pub").read_text().split()
    known = tmp_path / "known_hosts"
    known.write_text(f"{host.address} {kind} {key}\n")
    words = refused(replace(host, known_hosts=str(known)))
    assert f"ssh failed: Host key for server '{host.address}' does not match" in words


def test_a_key_that_the_host_does_not_accept(host: Host, tmp_path: Path) -> None:
    key = make_key(tmp_path / "other")
    words = refused(replace(host, key=key))
    assert f"the user root cannot log in with the key {key} (" in words
    assert "add its public key to ~root/.ssh/authorized_keys there" in words


def test_a_port_where_nothing_answers(host: Host) -> None:
    assert "nothing answers on port 2222 (Connection refused): does sshd run there?" in refused(
        replace(host, port=2222)
    )


FACTS = {"kernel": "Linux", "machine": "x86_64", "uid": "0", "nft": "/usr/sbin/nft", "python": "/usr/bin/python3"}
FACTS |= {"version": "3.11", "package.curl": "install ok installed", "user.app": "1000"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"kernel": "Darwin"}, "its kernel is Darwin, and nodes need Linux"),
        ({"python": ""}, "there is no python3: `apt-get install python3` there"),
        ({"version": "3.9"}, "its python3 is 3.9, and nodes need 3.11 or later"),
        ({"version": "sh: line 9: no such file"}, "its python3 is sh: line 9: no such file, and nodes need 3.11"),
        ({"version": "oops"}, "its python3 is oops, and nodes need 3.11 or later"),
        ({"uid": "1000", "sudo": "sh: 1: sudo: not found"}, "root is not root there, and sudo refuses (sh: 1: sudo:"),
        ({"nft": ""}, "there is no nft, which cuts links: `apt-get install nftables` there"),
        ({"package.curl": "no packages found"}, "the system under test needs packages: `apt-get install curl` there"),
        ({"user.app": "no such user"}, "there is no user app, as whom the system under test runs"),
    ],
)
def test_what_a_host_lacks_is_named_with_the_command_that_installs_it(changed: dict[str, str], words: str) -> None:
    lacking = missing(FACTS | changed, "root", Needs(debian=("curl",), user="app"))
    assert lacking.startswith(words) and bool(words) is bool(lacking)


def test_a_user_who_may_not_become_root(host: Host, hosts: SshHosts) -> None:
    someone = replace(host, user="someone")
    words = refused(someone)
    assert "someone is not root there, and sudo refuses (sudo: a password is required)" in words
    rule = re.search(r"`(someone ALL=.*)` in (\S+)\)", words)
    assert rule is not None
    hosts.put("beta", rule[2], rule[1].encode() + b"\n")
    try:
        hosts.run("beta", "chmod", "440", rule[2])
        visit = reach(someone, Needs())
        visit.connection.close()
        assert visit.facts.prefix == ("sudo", "-n")
    finally:
        hosts.run("beta", "rm", rule[2])


# ---- the backend ---------------------------------------------------------------------------------------------------


def backend(hosts: SshHosts, run_id: str, **changed: str) -> SshBackend:
    inventory = hosts.inventory(("alpha", "beta"), ("gamma",), **changed)
    return SshBackend(ClusterSpec(run_id, ("n1", "n2"), ("c1",), seed=1, inventory=inventory))


async def test_every_host_that_cannot_be_used_is_named_at_once(hosts: SshHosts, tmp_path: Path) -> None:
    wrong = backend(hosts, "refused", key=make_key(tmp_path / "other"))
    try:
        with pytest.raises(BackendUnavailable) as refusal:
            await wrong.create(print)
    finally:
        await wrong.destroy()
    assert [line.split()[0] for line in str(refusal.value).splitlines()] == ["alpha", "beta", "gamma"]
    assert wrong.leftovers == []


async def test_a_second_run_on_the_same_hosts_is_refused_until_the_first_one_is_about_to_leave(hosts: SshHosts) -> None:
    first, second, third = (backend(hosts, name) for name in ("first", "second", "third"))
    second.patience_s = 0.5
    try:
        await first.create(print)
        await first.node("n1").start(["sleep", "1000"])
        with pytest.raises(BackendUnavailable, match=r"another run is using this host \(first\): wait for its end"):
            await second.create(print)
        await second.destroy()
        assert second.leftovers == []
        assert await first.state("n1") == "running"
        assert not any("second" in line for line in hosts.left_on("alpha"))
        await first.close_links()
        await third.create(print)
        assert await third.state("n1") == "dead"
    finally:
        for each in (second, third, first):
            await each.destroy()
    assert first.leftovers + third.leftovers == []


def on_beta(hosts: SshHosts, run_id: str, **changed: str) -> SshBackend:
    inventory = hosts.inventory(("beta",), (), **changed)
    return SshBackend(ClusterSpec(run_id, ("n1",), (), seed=1, wanted=frozenset({DISK}), inventory=inventory))


async def test_a_host_whose_folder_cannot_be_made_says_so(hosts: SshHosts) -> None:
    hosts.put("beta", "/etc/krucible-file", b"")
    broken = on_beta(hosts, "nowhere", folder="/etc/krucible-file/runs")
    try:
        with pytest.raises(BackendUnavailable, match=r"the agent did not start: NotADirectoryError"):
            await broken.create(print)
    finally:
        await broken.destroy()
        hosts.run("beta", "rm", "/etc/krucible-file")
    assert hosts.left_on("beta") == []


async def test_a_host_without_fuse_says_what_it_needs(hosts: SshHosts) -> None:
    backend = on_beta(hosts, "fuseless")
    hosts.run("beta", "rm", "/dev/fuse")
    try:
        await backend.create(print)
        assert "It needs /dev/fuse, the right to mount (CAP_SYS_ADMIN)" in backend.lacks(DISK)
        with pytest.raises(CannotInject, match="needs the capability"):
            await backend.probe_disk("n1")
    finally:
        await backend.destroy()
        hosts.run("beta", "mknod", "-m", "666", "/dev/fuse", "c", "10", "229")
    assert backend.leftovers == []
