"""Nodes in containers: images, a network in 198.18.0.0/15, the agent as PID 1, and link cuts on the bridge."""

from harness.backends.docker.backend import DockerBackend
from harness.backends.docker.engine import why_unavailable
from harness.backends.docker.image import ensure_image

__all__ = ["DockerBackend", "ensure_image", "why_unavailable"]
