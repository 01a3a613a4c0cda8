"""Namespaces leave nothing: after a destroy, a cancelled create, and a harness that was killed at any moment."""

from __future__ import annotations

import asyncio
import os
import pwd
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from docker_things import needs_namespaces
from namespaces_clusters import (
    REPOSITORY,
    SLEEP,
    backend,
    folders_of,
    nothing_left,
    processes_of,
)
from waiting import until

from harness.backends.leftovers import current_owner
from harness.backends.namespaces_backend import FOLDER_PREFIX, sweep_folders
from nemesis.cluster import DISK
from system_under_test.subject import NodeGone

needs_fuse = pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs /dev/fuse")
pytestmark = [*needs_namespaces, pytest.mark.asyncio(loop_scope="module")]


async def test_after_destroy_nothing_is_left_and_a_second_destroy_does_no_harm():
    """It also sweeps the folder of a dead run, and none of a living one."""
    other = backend("destroy")
    dead, living = (Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{name}-")) for name in ("swept", "living"))
    (dead / "owner").write_text(current_owner().replace(":", ":1", 1))
    (living / "owner").write_text(current_owner())
    await other.create(lambda words: None)
    assert not dead.exists()
    living.joinpath("owner").unlink()
    living.rmdir()
    await other.node("n1").start(SLEEP)
    assert processes_of(other.spec.run_id) and folders_of(other.spec.run_id)
    await other.destroy()
    assert nothing_left(other.spec.run_id, 0.0)
    await other.destroy()
    with pytest.raises(NodeGone):
        await other.node("n1").state()


@pytest.mark.parametrize("after_s", [0.6])
async def test_a_create_that_is_cancelled_leaves_nothing(after_s):
    other = backend("cancelled")
    creating = asyncio.create_task(other.create(lambda words: None))
    await asyncio.sleep(after_s)
    creating.cancel()
    await asyncio.wait([creating])
    await other.destroy()
    assert nothing_left(other.spec.run_id)


_RUN = """
import asyncio, sys
from harness.backends.backend import ClusterSpec
from harness.backends.namespaces_backend import NamespacesBackend

async def main():
    cluster = NamespacesBackend(ClusterSpec(sys.argv[1], ("n1", "n2"), ("c1",), 1, frozenset(sys.argv[3:])))
    print("creating", flush=True)
    await cluster.create(lambda words: None)
    await cluster.node("n1").start(["sleep", "1000"])
    await cluster.cut([("n1", "n2")])
    while (seen := await cluster.observe(0.3, 2.0))["n1", "n2"].sent < 50:
        pass
    print("up", seen["n1", "n2"].received, min(seen["n2", "n1"].received, 1), flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    await cluster.destroy()

asyncio.run(main())
"""


def start_run(run_id: str, sleep_s: float, *wanted: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, run_id, str(sleep_s), *wanted],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


@pytest.mark.parametrize(
    ("after_s", "wanted"),
    [
        (0.4, ()),
        (None, ()),
        pytest.param(None, (DISK,), marks=needs_fuse),
        *(
            pytest.param(random.Random(n).uniform(0.0, 4.0), (DISK,) * (n % 2), marks=[pytest.mark.nightly, needs_fuse])
            for n in range(40)
        ),
    ],
)
async def test_a_harness_killed_at_any_moment_leaves_nothing(after_s, wanted):
    """after_s: since it began to create; None: once all is up."""
    run_id = f"killed-{os.getpid()}"
    harness = start_run(run_id, 1000.0, *wanted)
    assert harness.stdout.readline() == "creating\n"
    if after_s is None:
        assert harness.stdout.readline() == "up 0 1\n"
        assert len(processes_of(run_id)) >= 6
        assert not wanted or [folder for folder in folders_of(run_id) if (folder / "n1" / "disk").exists()]
    else:
        await asyncio.sleep(after_s)
    harness.kill()
    harness.wait()
    harness.stdout.close()
    until(lambda: not processes_of(run_id))
    if after_s is not None and not nothing_left(run_id, 1.0):
        sweep_folders()  # as the next run does: the folder of a run that died before it had a warden may be left
    assert nothing_left(run_id)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_an_unprivileged_user_can_create_it():
    account = pwd.getpwnam("nobody")
    python = next((p for p in ("/usr/bin/python3.11", "/usr/bin/python3") if Path(p).exists()), None)
    if python is None:
        pytest.skip("no Python that an unprivileged user may execute")

    packages = Path(msgspec.__file__).parents[1]

    def unprivileged(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *argv],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{REPOSITORY}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )

    probed = unprivileged(
        "-c", "from harness.backends.namespaces_backend import why_unavailable; print(why_unavailable())"
    )
    if probed.returncode != 0 or probed.stdout != "None\n":
        pytest.skip(f"an unprivileged user may not, here: {(probed.stdout + probed.stderr).strip()[-300:]}")
    run_id = f"unprivileged-{os.getpid()}"
    done = unprivileged("-c", _RUN, run_id, "0")
    assert done.stdout == "creating\nup 0 1\n", done.stderr
    assert nothing_left(run_id)
