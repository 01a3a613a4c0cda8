"""Judging a run while it goes on, by the kernels that judge it when it is sealed (docs/online.md).

Pure cores: each is fed with what is new, keeps only what can still matter, and does no I/O.  What they may be fed with
is what can never be taken back: events of the history in index order, whole rows of a trace, and entries of a log
below a mark that its node had reported before they were read.
"""
