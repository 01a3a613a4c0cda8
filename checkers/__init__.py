"""Judges histories, logs and traces; knows nothing of clusters, clients or faults' machinery."""
