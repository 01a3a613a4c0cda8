"""`set-read-at-end`: elements are added to sets, and each set is read once, after recovery.

It fits systems that promise to keep acknowledged elements, but not that each read shows the newest state: message
queues and streams.  An acknowledged element that is missing from the last read was lost.
"""

from workloads.generators import Call, uniform
from workloads.objects import GrowSet
from workloads.workload import Request


class SetReadAtEnd(GrowSet):
    name = "set-read-at-end"
    final_needs_recovery = True
    summary = "elements are added to sets, and each set is read once, after recovery"

    def generator(self, placement):
        key = uniform(self.names)
        return Call(lambda turn: Request("add", key(turn), turn.fresh()))
