"""What the sync and the async channel have in common."""

CHANNEL_OPTIONS = [
    # A server that was just (re)started is found in a fraction of a second, not after up to 20 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
]

INFO_TIMEOUT_S = 5.0
"""Default bound of the two calls that only ask."""
