"""Debian packages and the user that one system needs on its nodes: a layer of the image upon the common base."""

from __future__ import annotations

import os
import time
from typing import Any

from docker.errors import APIError

from harness.backends.backend import BackendUnavailable
from harness.backends.docker.cleanup import remove_run
from harness.backends.docker.containers import NODE_FOLDER
from harness.backends.docker.engine import IMAGE_LABEL, OWNER_LABEL, RUN_LABEL, labels
from harness.backends.remains.owner import current_owner
from harness.backends.remains.reaper import Reaper
from system_under_test.subject import Needs


def packages_script(needs: Needs) -> str:
    """Installs packages and starts none of their services.  A volume begins with the owner of the folder it covers."""
    lines = ["set -e", "printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d", "chmod +x /usr/sbin/policy-rc.d"]
    if needs.debian:
        install = "apt-get install -y -q --no-install-recommends"
        lines += ["export DEBIAN_FRONTEND=noninteractive", "apt-get update -q", f"{install} {' '.join(needs.debian)}"]
        lines += ["rm -rf /var/cache/apt /var/lib/apt/lists/* /usr/share/doc"]
    if needs.user:
        lines += [f"id {needs.user} > /dev/null || useradd --system {needs.user}"]
        lines += [f"install -d -o {needs.user} {NODE_FOLDER}"]
    return "\n".join(lines)


def add_packages(client: Any, below: str, tag: str, needs: Needs) -> None:
    """Commit `below` with Debian packages installed.  Raises BackendUnavailable with apt's own words."""
    api, run_id = client.api, f"image-{os.getpid()}-{time.monotonic_ns()}"
    reaper = Reaper("harness.backends.docker.cleanup:reap_image_build", {"run_id": run_id})
    repository, _, version = tag.partition(":")
    try:
        argv, host = ["sh", "-c", packages_script(needs)], api.create_host_config(network_mode="host")
        container = api.create_container(below, argv, labels=labels(run_id, current_owner()), host_config=host)["Id"]
        api.start(container)
        if api.wait(container)["StatusCode"] != 0:
            words = api.logs(container, tail=3).decode(errors="replace").strip()
            raise BackendUnavailable(f"{', '.join(needs.debian)} could not be installed on the nodes: {words}")
        unlabel = f"LABEL {IMAGE_LABEL}=needs {RUN_LABEL}= {OWNER_LABEL}="
        api.commit(container, repository, version, changes=[unlabel])
    except APIError as error:
        raise BackendUnavailable(f"Docker could not install packages: {error.explanation}") from error
    finally:
        remove_run(client, run_id)
        reaper.dismiss()
