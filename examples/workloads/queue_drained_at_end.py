"""`queue-drained-at-end`: values are enqueued, and each queue is drained once, after recovery.

It fits message queues that promise to keep confirmed messages.  A confirmed message that the last drain does not return
was lost.  There are no other consumers: a message may be delivered twice, and out of order, if its consumer is cut off.
"""

from workloads.generators import Call, uniform
from workloads.objects import Queue
from workloads.workload import Request


class QueueDrainedAtEnd(Queue):
    name = "queue-drained-at-end"
    functions = {"enqueue": "enqueue", "drain": "drain"}
    reads = frozenset({"drain"})
    final_needs_recovery = True
    summary = "values are enqueued, and each queue is drained once, after recovery"

    def generator(self, placement):
        key = uniform(self.names)
        return Call(lambda turn: Request("enqueue", key(turn), turn.fresh()))
