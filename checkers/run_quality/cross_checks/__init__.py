"""Compares what the run recorded in several places: the records of faults, deaths, copies and operations must agree."""
