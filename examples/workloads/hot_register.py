"""`hot-register`: one register is written in bursts, the other registers hardly ever."""

from workloads.generators import Bursts, Call, Mix, reads_of, reserve, zipf
from workloads.workload import Request, Workload


class HotRegister(Workload):
    name = "hot-register"
    summary = "registers of which the first is used most, in bursts"
    checkers = ("linearizability",)
    functions = {"read": "read", "write": "write"}
    reads, writes = frozenset({"read"}), frozenset({"write"})
    real_test = "Bursts of writes to one register overlap with reads of it while a fault lasts."
    pace = Bursts(period_s=5.0, length_s=1.0, height=10.0)

    def generator(self, placement):
        key = zipf(self.names, exponent=1.5)
        read = Call(lambda turn: Request("read", key(turn)))
        write = Call(lambda turn: Request("write", key(turn), turn.fresh()))
        return reserve(placement, readers=read, others=Mix(((0.3, read), (0.7, write))))

    def final(self):
        return reads_of("read", self.names)
