"""The metadata controller: a pure state machine over records."""
