"""What a node gets of the code suffices to read a file that holds a system, a workload, a model and a checker."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from harness.backends.builds import REPOSITORY, node_code
from harness.registry import SUBJECTS, load

EXAMPLE = REPOSITORY / "examples" / "highest_value.py"
READ = """
for name in ("pyarrow", "numpy", "numba", "networkx"):
    sys.modules[name] = None
from pathlib import Path
from system_under_test.own.read_own_system import read_files
example = Path({example!r})
module = read_files(example, files={{example.name: example.read_text()}})
import checkers, workloads
assert all(Path(each.__path__[0]).is_relative_to({code!r}) for each in (checkers, workloads))
print(module.HighestClient.__name__, module.MODEL.name, module.HighestValue.name)
"""


def as_on_a_node(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the code of a node and installed packages, but none of this tree, which they may lead to."""
    for name, content in node_code().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    paths = f"import sys; sys.path[:0] = {[str(folder), sysconfig.get_path('purelib')]!r}\n"
    argv = [sys.executable, "-S", "-c", paths + text]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def test_the_agent_of_a_node_starts(tmp_path: Path) -> None:
    done = as_on_a_node(tmp_path, "sys.modules['pyarrow'] = None; import harness.agent.process")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_node_can_read_a_file_that_holds_everything(tmp_path: Path) -> None:
    done = as_on_a_node(tmp_path / "code", READ.format(code=str(tmp_path / "code"), example=str(EXAMPLE)))
    assert done.stdout.split() == ["HighestClient", "highest-value", "highest-value"], done.stderr


def test_a_node_can_import_the_client_of_every_bundled_system(tmp_path: Path) -> None:
    kinds = [load(place) for place in SUBJECTS.values()]
    modules = {kind.client.__module__ if kind.client else kind.client_module for kind in kinds}
    assert "system_under_test.kafka.client" in modules
    done = as_on_a_node(tmp_path, f"sys.modules['pyarrow'] = None; import {', '.join(filter(None, sorted(modules)))}")
    assert (done.returncode, done.stderr) == (0, "")
