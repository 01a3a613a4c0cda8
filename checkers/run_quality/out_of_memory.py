"""Which ends of servers the kernel's out-of-memory killer may have caused.

It sends SIGKILL, which looks like a kill by anybody else.  So each end records how often the killer struck on the
machine since the server started (`oom_kills` in outcome.json).  The count is that of the whole machine.  So it does not
prove that this server was struck: the cause of its end is then not known.  Runs of older versions record no count.
"""

from __future__ import annotations

from checkers.record.outcome import Death

_BY_SIGKILL = (-9, 128 + 9)
"""The second is the exit status of a shell whose program was killed."""


def may_be_out_of_memory(death: Death) -> bool:
    """death: one that the harness did not order."""
    return death.status in _BY_SIGKILL and death.oom_kills > 0


def in_words(node: str) -> str:
    """Why the end of this node's server says nothing about the system."""
    return (
        f"the kernel's out-of-memory killer ended the server of {node}, as far as is known: give the machine more "
        "memory or the run fewer nodes"
    )
