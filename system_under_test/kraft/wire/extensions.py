"""The one word the bundled controller adds to Kafka's protocol."""

NOT_QUEUED = "NOT_QUEUED"
"""How the error_message of a 41 NOT_CONTROLLER begins if, and only if, the request certainly never reached the log."""

OUR_PREFIX = "krucible-"
"""Client ids that begin so are the project's own: their requests are answered where they arrive or refused, never
handed on to another node."""
