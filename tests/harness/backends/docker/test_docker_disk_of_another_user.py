"""The disk of a server that refuses to run as root can fail too."""

from __future__ import annotations

import asyncio
import os

from cluster_links import until_file_holds
from docker_things import left_of, needs_docker

from harness.backends.backend import ClusterSpec
from harness.backends.docker.backend import DockerBackend
from nemesis.cluster import DISK
from system_under_test.subject import Needs

pytestmark = needs_docker

USER = "daemon"  # Debian's base system has it
SCRIPT = f"""set -e
chown {USER} "$1"; cd "$1"
exec setpriv --reuid={USER} --regid={USER} --init-groups sh -ec '
    mkdir kept; chmod 700 kept; echo 1 > kept/fsynced; sync kept/fsynced kept; echo 2 > kept/not-fsynced; id -un
    exec sleep 1000'"""


def test_a_server_of_another_user_loses_what_it_did_not_fsync() -> None:
    async def lost() -> tuple[str, dict[str, int]]:
        spec = ClusterSpec(run_id, ("n1",), (), 1, frozenset({DISK}), needs=Needs(user=USER))
        backend = DockerBackend(spec)
        try:
            await backend.create(print)
            node = backend.node("n1")
            log = f"{node.log_dir}/server.log"
            await node.start(["sh", "-c", SCRIPT, "sh", node.data_dir], output=log)
            await until_file_holds(node, log, f"{USER}\n".encode())
            await backend.kill("n1")
            await backend.lose_power("n1", "lose", 1)
            left = await node.run(
                ["sh", "-c", 'cd "$1"; stat -c "%U %n %s" *', "sh", f"{node.data_dir}/kept"], timeout_s=60.0
            )
            loss = dict(await backend.power_loss("n1"))
            return left.stdout.decode(), loss
        finally:
            await backend.destroy()

    run_id = f"test-{os.getpid()}-user"
    left, loss = asyncio.run(lost())
    assert left.splitlines() == [f"{USER} fsynced 2"]
    assert (loss["fsynced_kept"], loss["not_fsynced_kept"], loss["used"]) == (1, 0, 1)
    assert left_of(run_id) == []
