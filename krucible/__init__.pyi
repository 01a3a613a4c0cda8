"""The names of `krucible` for type checkers; `__init__.py` loads them when they are used."""

from checkers.base.checker import Checker as Checker
from checkers.base.verdict import Validity as Validity
from checkers.base.verdict import Verdict as Verdict
from checkers.base.verdict import Witness as Witness
from checkers.models.model import REFUSED as REFUSED
from checkers.models.model import Model as Model
from checkers.models.model import Operation as Operation
from checkers.record.faults import Fault as Fault
from harness.judge.check_files import check as check
from harness.run.session import JudgedRun as JudgedRun
from harness.run.session import run as run
from harness.spec import Spec as Spec
from simulation.world import World as World
from simulation.world import simulate as simulate
from system_under_test.client import Address as Address
from system_under_test.client import Client as Client
from system_under_test.client import Placement as Placement
from system_under_test.client import Request as Request
from system_under_test.functions import Function as Function
from system_under_test.subject import Artefact as Artefact
from system_under_test.subject import Crate as Crate
from system_under_test.subject import Needs as Needs
from system_under_test.subject import NodeStatus as NodeStatus
from system_under_test.system import OwnNode as OwnNode
from system_under_test.system import System as System
from workloads.workload import Workload as Workload
