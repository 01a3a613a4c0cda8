"""Marks fields that a whole record may lack."""

from __future__ import annotations

from collections.abc import Mapping

AT_TIMES: Mapping[str, bool] = {"at times": True}
"""Metadata of a field that only some records of today's format hold.  Its absence never excuses anything."""
