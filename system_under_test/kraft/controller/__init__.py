"""The metadata controller as a pure state machine: (request, image) -> records and result; replay(record)."""
