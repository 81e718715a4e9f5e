"""What the sync and the async channel have in common."""

CHANNEL_OPTIONS = [
    # A connection for each client, not one for all of a process: several front ends may share the
    # port, and each connection gets to one of them.
    ("grpc.use_local_subchannel_pool", 1),
    # A server that was just (re)started is found in a fraction of a second, not after up to 20 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # One that is stuck still gets connections: the next try may get to another one.
    ("grpc.min_reconnect_backoff_ms", 4000),
    # A front end that is stuck, or out of reach, is left within half a minute, and its streams go
    # on elsewhere. (Of the two bounds for an answer to a ping, gRPC heeds this one.)
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

INFO_TIMEOUT_S = 5.0
"""Default bound of the two calls that only ask."""
