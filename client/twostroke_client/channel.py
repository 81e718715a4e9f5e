"""What the sync and the async channel have in common."""

CHANNEL_OPTIONS = [
    # A connection for each client, not one for all of a process: several front ends may share the
    # port, and each connection gets to one of them.
    ("grpc.use_local_subchannel_pool", 1),
    # A server that was just (re)started is found in a fraction of a second, not after up to 20 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
]

INFO_TIMEOUT_S = 5.0
"""Default bound of the two calls that only ask."""
