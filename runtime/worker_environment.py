"""The environment variables by which a launcher or an agent tells a worker who it is."""

from __future__ import annotations

from pathlib import Path


def worker_environment(
    *,
    run: str,
    node: str,
    endpoint: str,
    token: str,
    checkpoint_every_steps: int,
    checkpoints: Path,
) -> dict[str, str]:
    """What every worker of the run on this node shares; slot and incarnation come at each start."""
    return {
        "UNBROKEN_RUN": run,
        "UNBROKEN_NODE": node,
        "UNBROKEN_COORDINATOR": endpoint,
        "UNBROKEN_RUN_TOKEN": token,
        "UNBROKEN_CHECKPOINT_EVERY": str(checkpoint_every_steps),
        "UNBROKEN_CHECKPOINTS": str(checkpoints.resolve()),
    }
