"""What the coordinator tells the books: event data made from its state; pure."""

from __future__ import annotations

from typing import Any

from runtime.coordinator.model import Failure, Recovery, State


def push(state: State, key: str, event_type: str, body: dict[str, Any]) -> None:
    """Queues an event; `key` makes a repeated append after a crash harmless."""
    state.events.append({"key": f"{state.config.run}/{key}", "type": event_type, "data": body})


def started(state: State, framework: str, gpu_model: str | None) -> None:
    config = state.config
    push(
        state,
        "started",
        "run.started",
        {
            "run": config.run,
            "contract": config.contract,
            "cluster": config.cluster,
            "world_size": config.world_size,
            "mesh": {"replicate": config.world_size, "shard": 1},
            "commit_unit": "optimizer_step",
            "framework": framework,
            "checkpoint_every_steps": config.checkpoint_every_steps,
            "priority": config.priority,
            "spares": config.spares,
            "supported": True,
            "support_reasons": [],
            "gpu_model": gpu_model,
        },
    )


def failed(state: State, failure: Failure, committed_step: int) -> None:
    failure.reported, failure.committed_step = True, committed_step
    push(
        state,
        f"failure/{failure.failure_id}",
        "failure.detected",
        {
            "failure_id": failure.failure_id,
            "run": state.config.run,
            "epoch": failure.epoch,
            "ranks": [] if failure.rank is None else [failure.rank],
            "nodes": [failure.node] if failure.node else [],
            "gpus": [],
            "committed_step": committed_step,
            "cause": failure.cause,
            "cause_id": None,
            "detector": failure.detector,
            "planned": False,
        },
    )


def recovered(state: State, recovery: Recovery, now: float) -> None:
    """`recovery.completed`, or `migration.completed` for a planned move."""
    planned = bool(recovery.reason)
    moved = []
    transfer_seconds = 0.0
    for rank, (old, new) in sorted(recovery.replaced.items(), key=lambda item: int(item[0])):
        received = state.workers[new].received or {}
        transfer_seconds = max(transfer_seconds, float(received.get("seconds", 0.0)))
        moved.append(
            {
                "rank": int(rank),
                "from": old,
                "to": new,
                "bytes": int(received.get("bytes", 0)),
                "seconds": round(float(received.get("seconds", 0.0)), 6),
                "digest": received.get("digest", ""),
            }
        )
    rolled_back = max(0, recovery.committed_step + 1 - recovery.resumed_step)
    body: dict[str, Any] = {
        "failure_ids": recovery.failure_ids,
        "run": state.config.run,
        "from_epoch": recovery.from_epoch,
        "to_epoch": state.epoch,
        "mode": recovery.mode,
        "state_source": recovery.state_source,
        "committed_step": recovery.committed_step,
        "resumed_step": recovery.resumed_step,
        "recomputed_steps": rolled_back,
        "samples_skipped": 0,
        "moved": moved,
        "seconds": {
            "detect": round(recovery.detected_at - recovery.began_at, 6),
            "decide": round(recovery.decided_at - recovery.detected_at, 6),
            "regroup": round(max(0.0, now - recovery.decided_at - transfer_seconds), 6),
            "transfer": round(transfer_seconds, 6),
            "total": round(now - recovery.began_at, 6),
        },
    }
    if planned:
        body["reason"] = recovery.reason
    kind = "migration.completed" if planned else "recovery.completed"
    push(state, f"movement/{recovery.from_epoch}-{state.epoch}", kind, body)


def progressed(state: State, committed_step: int, body: dict[str, Any]) -> None:
    push(
        state,
        f"progress/{state.epoch}/{committed_step}",
        "run.progress",
        {
            "run": state.config.run,
            "epoch": state.epoch,
            "committed_step": committed_step,
            "step_seconds": body.get("step_seconds"),
            "samples_per_second": body.get("samples_per_second"),
            "tokens_per_second": body.get("tokens_per_second"),
            "mfu": None,
            "lost_seconds": round(state.lost_seconds, 6),
        },
    )
    state.lost_seconds = 0.0


def finished(state: State, status: str, by: str) -> None:
    push(
        state,
        f"finished/{status}",
        "run.finished",
        {
            "run": state.config.run,
            "status": status,
            "committed_step": state.committed_step,
            "by": by,
        },
    )
