"""No test of faults is judged by how long an example took: machines are busy."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
