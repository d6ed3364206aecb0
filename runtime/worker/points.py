"""Named places in a worker's life, where a drill lets faults strike; one comparison without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

# In the order in which a process comes by. `sending` is reached in a donor's thread and `receiving`
# in a receiver's, once a chunk each; `saving` in the thread that writes checkpoints.
NAMES: Final = (
    "warming_up",  # before the two steps that a fresh process warms up with
    "ready",  # the coordinator has heard that this process could take a rank
    "taking_state",  # an epoch's order is here
    "sending",
    "receiving",
    "applying",  # a whole, verified state lies beside the old one
    "building",  # this process holds the epoch's state, its group is to be formed
    "comparing",  # the group stands, its first collective is to come
    "joined",  # the coordinator has heard that this process stands in the epoch
    "forward",  # a step begins
    "backward",  # its first gradient is there
    "collective",  # a sum is under way
    "vote",
    "optimizer",  # the step will stand, nothing is changed yet
    "committed",  # it stands, and nobody has heard of it
    "saving",  # a checkpoint's tensors are on disk, its manifest is not
    "parked",  # told to stop with the state saved, about to leave
)

Listener = Callable[[str, dict[str, Any]], None]
_listener: Listener | None = None


def listen(listener: Listener | None) -> None:
    """Has every point call this with its name and facts, in the thread that reaches it."""
    global _listener
    _listener = listener


def reach(name: str, **facts: object) -> None:
    """`facts` say where the process stands (rank, epoch, step, source) as far as this changed."""
    if _listener is not None:
        _listener(name, facts)
