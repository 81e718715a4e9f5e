"""Errors of the executor, as a tree. What fails while a step runs is runner.RunnerError.

ExecutorError           the executor cannot start; one clear sentence for whoever started it
├── ModelNotFound       there is no such folder or hub name
├── ModelNotUsable      the folder is there, but its content cannot be loaded
├── UnsupportedModel    the model loads, but its family cannot be run exactly
├── OutOfMemory         the KV cache does not fit
└── TraceError          the trace cannot be written
"""


class ExecutorError(Exception):
    """Base of everything that keeps the executor from starting."""


class ModelNotFound(ExecutorError):
    pass


class ModelNotUsable(ExecutorError):
    pass


class UnsupportedModel(ExecutorError):
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"the model family {kind!r} is not supported: {reason}")
        self.kind = kind
        self.reason = reason


class OutOfMemory(ExecutorError):
    pass


class TraceError(ExecutorError):
    pass
