"""Judges the parts of a run on Spark: local workers or a cluster, and everything its nodes need."""
