"""Judges a run while it goes on, with the kernels that judge it when it is sealed (docs/online.md).

The cores are pure: each gets new data, keeps only data that can still matter, and does no I/O.  They get only data that
never changes again: events of the history in index order, whole rows of a trace, and entries of a log below a mark that
its node had reported before they were read.
"""
