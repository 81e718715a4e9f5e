"""Errors of the wire, as a tree.

WireError
├── FrameError          a frame in shared memory cannot be used
│   ├── ForeignFrame    not a frame of ours, or another layout version
│   ├── TornFrame       the checksum does not match the content
│   ├── StaleFrame      another epoch or step than the reader expects
│   └── InvalidFrame    readable, but a value is out of its bounds
├── RingError           the shared file cannot be created, opened or mapped
│   └── RingTooLarge    the file system that holds the ring is too small for it
├── MessageError        a message on a socket cannot be decoded
└── RunDirError         the runtime directory is unsafe or unusable
    └── LockHeld        another process has the role in it
    └── LockHeld        a name in it belongs to another process
"""


class WireError(Exception):
    """Base of everything that this package raises on purpose."""


class FrameError(WireError):
    pass


class ForeignFrame(FrameError):
    pass


class TornFrame(FrameError):
    pass


class StaleFrame(FrameError):
    pass


class InvalidFrame(FrameError):
    pass


class RingError(WireError):
    pass


class RingTooLarge(RingError):
    pass


class MessageError(WireError):
    pass


class RunDirError(WireError):
    pass


class LockHeld(RunDirError):
    pass
