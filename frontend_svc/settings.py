"""What was asked of this front end on its command line; nothing here is changed afterwards."""

from dataclasses import dataclass
from pathlib import Path

from svc_shell.listening import DEFAULT_HOST, DEFAULT_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    """0 takes any free port."""
    metrics_port: int = 0
    """For metrics; one that is named frontend-2 takes the port after it, and so on. 0: none."""
    name: str = ""
    """Of its lock; empty: the first that is free of frontend, frontend-2, ..."""
    shares_port: bool = False
    """Other front ends listen there, too."""
    replaces: bool = False
    """The front end of this name is to leave once this one can serve."""
    admin: bool = False
    """Serve AdminService although other machines reach the address; on loopback it always is."""
    tokenizer: Path | None = None
    """Folder with tokenizer.json; None is the folder that the executor names."""
    stream_buffer_tokens: int = 4096
    """Tokens that may wait for one slow reader before its stream is ended."""
    streams_max: int = 4096
    """Requests at once, those that are being tokenised included."""
    message_bytes_max: int = 64 << 20
    """Largest message that is taken from a client."""
    outage_timeout_s: float = 30.0
    """How long streams wait for a scheduler or an executor that was lost or is stuck."""
    drain_timeout_s: float = 30.0
    """How long streams in flight may go on after SIGTERM."""
