"""The exceptions of the runtime; each says whether trying again can help."""

from __future__ import annotations


class FailoverError(Exception):
    """Base of every error that the runtime raises on purpose."""

    code = "failover_error"
    retryable = False


class StepVoid(FailoverError):
    """The epoch broke under a blocking call; the step in flight does not count."""

    code = "step_void"
    retryable = True


class TransferFailed(FailoverError):
    """State could not be received whole from any source that was offered."""

    code = "transfer_failed"
    retryable = True


class CheckpointInvalid(FailoverError):
    """A checkpoint does not have the digest that its manifest states."""

    code = "checkpoint_invalid"


class MemoryRefused(FailoverError):
    """The disk would not take what the coordinator has to remember; once it does, all is well."""

    code = "memory_refused"
    retryable = True


class UsageError(FailoverError):
    """The training script or a command line asked for something that cannot be done."""

    code = "usage"
