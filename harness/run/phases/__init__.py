"""The phases of a run, one file each: a function over the run's context, in the order that `conductor.py` lists."""
