"""Refusal by a decision of a request, or a part of one."""

from __future__ import annotations

from kio.schema.errors import ErrorCode


class Refused(Exception):
    """error: as Kafka answers it.  message: one sentence for the client."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
