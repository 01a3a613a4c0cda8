"""What a node gets of the code suffices to read a file that holds a system, a workload, a model and a checker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.backends.builds import REPOSITORY, node_code

EXAMPLE = REPOSITORY / "examples" / "highest_value.py"
READ = """
import sys
sys.path[:0] = [{code!r}]
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


def write_code(folder: Path) -> None:
    for name, content in node_code().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_the_agent_of_a_node_starts(tmp_path: Path) -> None:
    write_code(tmp_path)
    imports = "import sys; sys.modules['pyarrow'] = None; import harness.agent.process"
    done = subprocess.run([sys.executable, "-c", imports], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_node_can_read_a_file_that_holds_everything(tmp_path: Path) -> None:
    write_code(tmp_path / "code")
    text = READ.format(code=str(tmp_path / "code"), example=str(EXAMPLE))
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["HighestClient", "highest-value", "highest-value"], done.stderr
