"""The sets of states of the fleet's records, with the words people see."""

from __future__ import annotations

from django.db import models


class NodeState(models.TextChoices):
    """Where a node is in its life; being cordoned is apart from it."""

    HEALTHY = "healthy", "Healthy"
    SPARE = "spare", "Spare"
    SUSPECT = "suspect", "Suspect"
    QUARANTINED = "quarantined", "Quarantined"
    RETIRED = "retired", "Retired"


class RunState(models.TextChoices):
    REGISTERED = "registered", "Registered"
    RUNNING = "running", "Running"
    PARKED = "parked", "Parked"
    COMPLETED = "completed", "Completed"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"


class EventStatus(models.TextChoices):
    """Of events in force; a quarantined one has no effect until a person decides (R24)."""

    ACCEPTED = "accepted", "Accepted"
    QUARANTINED = "quarantined", "Quarantined"


class AsideReason(models.TextChoices):
    """Why a body was kept without being in force (R15)."""

    CONFLICT = "conflict", "Conflict"
    INVALID = "invalid", "Invalid"


class OrderKind(models.TextChoices):
    START_WORKER = "start_worker", "Start a worker"
    STOP_WORKER = "stop_worker", "Stop a worker"
    RUN_CHECK = "run_check", "Run a check"
    RESET_GPU = "reset_gpu", "Reset a GPU"
    REBOOT = "reboot", "Reboot"


class OrderState(models.TextChoices):
    OPEN = "open", "Open"
    ACKNOWLEDGED = "acknowledged", "Acknowledged"
    COMPLETED = "completed", "Completed"
    REFUSED = "refused", "Refused"
    FAILED = "failed", "Failed"
    EXPIRED = "expired", "Expired"


class FindingState(models.TextChoices):
    OPENED = "opened", "Opened"
    UPDATED = "updated", "Updated"
    CLEARED = "cleared", "Cleared"


class NodeAction(models.TextChoices):
    ENROLLED = "enrolled", "Enrolled"
    CORDONED = "cordoned", "Cordoned"
    UNCORDONED = "uncordoned", "Uncordoned"
