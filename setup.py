"""The packages that a wheel carries.  All metadata stands in pyproject.toml.

Examples stand at the top of the tree, where readers look for them, and travel inside the package `krucible`.
"""

from setuptools import find_packages, setup

ROOMS = ("harness", "simulation", "nemesis", "workloads", "checkers", "system_under_test", "krucible")
EXAMPLES = {"krucible.examples": "examples", "krucible.examples.workloads": "examples/workloads"}

setup(
    packages=[*find_packages(include=[pattern for room in ROOMS for pattern in (room, f"{room}.*")]), *EXAMPLES],
    package_dir=EXAMPLES,
)
