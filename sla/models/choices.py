"""The sets of words of the books, as the rules have them, with what people read."""

from __future__ import annotations

from django.db import models


class IncidentKind(models.TextChoices):
    FAILURE = "failure", "Failure"
    PLANNED = "planned", "Planned migration"
    UNREPORTED = "unreported", "Unreported rollback"
    PARK = "park", "Park"


class Verdict(models.TextChoices):
    ZERO_LOSS = "zero_loss", "Zero loss"
    ROLLBACK = "rollback", "Rollback"
    PENDING = "pending", "Pending"


class ExclusionReason(models.TextChoices):
    """R17: a closed list."""

    UNSUPPORTED_RUN = "unsupported_run", "Unsupported run"
    CUSTOMER_STOP = "customer_stop", "Stopped by the customer"
    CUSTOMER_CAUSE = "customer_cause", "Caused by the customer"
    MAINTENANCE = "maintenance", "Maintenance"
    FORCE_MAJEURE = "force_majeure", "Force majeure"
    REGISTERED_DRILL = "registered_drill", "Registered drill"


class Outcome(models.TextChoices):
    MET = "met", "Met"
    MISSED = "missed", "Missed"
    NO_FAILURES = "no_failures", "No failures"
    TOO_FEW = "too_few", "Too few incidents"
