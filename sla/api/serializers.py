"""The shapes in which the books answer; money in minor units and as text, never a float."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from runtime.events import format_time
from sla.domain.money import Amount
from sla.instants import to_us
from sla.models import Assessment, Contract, ContractVersion, Customer, Grant, Judgement
from sla.selectors.contracts import version_in_force
from sla.selectors.incidents import evidence_of
from sla.selectors.years import YearFacts


@extend_schema_field({"type": "string", "format": "date-time"})
class Instant(serializers.Field[dt.datetime, Any, str, Any]):
    """RFC 3339 in Z, six digits of fraction or none, as in events."""

    def to_representation(self, value: dt.datetime) -> str:
        return format_time(to_us(value))


CREDIT_SCHEMA = {
    "oneOf": [
        {
            "type": "object",
            "title": "Money",
            "properties": {
                "amount": {"type": "string"},
                "minor_units": {"type": "integer"},
                "currency": {"type": "string"},
            },
            "required": ["amount", "minor_units", "currency"],
        },
        {
            "type": "object",
            "title": "RateOfNextOrder",
            "properties": {
                "rate": {"type": "string"},
                "of": {"type": "string", "enum": ["next_order"]},
            },
            "required": ["rate", "of"],
        },
        {"type": "null"},
    ]
}


@extend_schema_field(CREDIT_SCHEMA)
class Credit(serializers.JSONField):
    """An amount, or the rate of the next order; null where there is none."""


class CustomerOutput(serializers.ModelSerializer[Customer]):
    id = serializers.CharField(source="public_id")

    class Meta:
        model = Customer
        fields = ("id", "name")


class ContractOutput(serializers.ModelSerializer[Contract]):
    id = serializers.CharField(source="public_id")
    customer = serializers.CharField(source="customer.public_id")
    customer_name = serializers.CharField(source="customer.name")
    starts = serializers.DateField(source="starts_on")
    ends = serializers.DateField(source="ends_on")
    signed = serializers.DateField(source="signed_on")
    terms = serializers.SerializerMethodField()
    terms_version = serializers.SerializerMethodField()

    class Meta:
        model = Contract
        fields = (
            *("id", "number", "customer", "customer_name", "currency", "timezone"),
            *("starts", "ends", "signed", "clusters", "terms", "terms_version"),
        )

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_terms(self, contract: Contract) -> Any:
        return version_in_force(contract).terms

    def get_terms_version(self, contract: Contract) -> int:
        return version_in_force(contract).number


class VersionOutput(serializers.ModelSerializer[ContractVersion]):
    effective = serializers.DateField(source="effective_on")
    recorded_at = Instant()

    class Meta:
        model = ContractVersion
        fields = ("number", "terms", "effective", "recorded_at", "recorded_by")


class YearOutput(serializers.Serializer[YearFacts]):
    """`ratio` is zero-loss over counted incidents, null where none counts; display truncates."""

    id = serializers.CharField(source="year.public_id")
    contract = serializers.CharField(source="year.contract.public_id")
    index = serializers.IntegerField(source="year.index")
    state = serializers.ChoiceField(choices=["open", "settling", "blocked", "closed", "restated"])
    start = Instant(source="year.starts_at")
    end = Instant(source="year.ends_at")
    revision = serializers.IntegerField()
    assessment = serializers.CharField(source="assessment.public_id", allow_null=True, default=None)
    counted = serializers.IntegerField(source="counts.counted")
    zero_loss = serializers.IntegerField(source="counts.zero_loss")
    rollback = serializers.IntegerField(source="counts.rollback")
    excluded = serializers.IntegerField(source="counts.excluded")
    pending = serializers.IntegerField(source="counts.pending")
    ratio = serializers.CharField(allow_null=True)
    percent = serializers.CharField(allow_null=True)
    outcome = serializers.ChoiceField(
        choices=["met", "missed", "no_failures", "too_few"], allow_null=True
    )
    credit = Credit(allow_null=True)
    notes = serializers.ListField(child=serializers.CharField())


class AssessmentOutput(serializers.ModelSerializer[Assessment]):
    id = serializers.CharField(source="public_id")
    contract = serializers.CharField(source="contract.public_id")
    year = serializers.CharField(source="year.public_id")
    supersedes = serializers.CharField(source="supersedes.public_id", allow_null=True, default=None)
    as_of = Instant()
    counted = serializers.IntegerField()
    credit = Credit(allow_null=True)
    terms_version = serializers.IntegerField(source="terms_version.number")

    class Meta:
        model = Assessment
        fields = (
            *("id", "contract", "year", "revision", "supersedes", "as_of", "counted"),
            *("zero_loss", "rollback", "excluded", "pending", "outcome", "credit", "notes"),
            *("inputs_digest", "rules_version", "terms_version"),
        )


class IncidentOutput(serializers.ModelSerializer[Judgement]):
    """An incident by its last judgement."""

    id = serializers.CharField(source="incident.public_id")
    contract = serializers.CharField(source="incident.contract.public_id")
    year = serializers.CharField(source="year.public_id", allow_null=True, default=None)
    run = serializers.CharField(source="incident.run")
    kind = serializers.CharField(source="incident.kind")
    first_event = serializers.CharField(source="incident.first_event")
    occurred_at = Instant(source="incident.occurred_at")
    failures = serializers.SerializerMethodField()
    excluded = serializers.SerializerMethodField()
    judged_at = Instant()

    class Meta:
        model = Judgement
        fields: tuple[str, ...] = (
            *("id", "contract", "year", "run", "kind", "first_event", "occurred_at", "failures"),
            *("verdict", "reasons", "lost_steps", "excluded", "judged_at", "rules_version"),
        )

    def get_failures(self, judgement: Judgement) -> int:
        return len(judgement.failure_ids)

    def get_excluded(self, judgement: Judgement) -> str | None:
        return judgement.excluded or None


class EvidenceOutput(serializers.Serializer[Any]):
    source = serializers.CharField()  # type: ignore[assignment]  # a field of that name
    id = serializers.CharField()
    type = serializers.CharField()
    time = serializers.CharField()
    sha256 = serializers.CharField(help_text="of the bytes as they were received")


class JudgementOutput(serializers.ModelSerializer[Judgement]):
    judged_at = Instant()
    excluded = serializers.SerializerMethodField()

    class Meta:
        model = Judgement
        fields = (
            *("number", "judged_at", "is_withdrawn", "verdict", "reasons", "lost_steps"),
            *("excluded", "rules_version"),
        )

    def get_excluded(self, judgement: Judgement) -> str | None:
        return judgement.excluded or None


class IncidentDetailOutput(IncidentOutput):
    failure_ids = serializers.ListField(child=serializers.CharField())
    nodes = serializers.ListField(child=serializers.CharField())
    epochs = serializers.ListField(child=serializers.IntegerField())
    evidence = serializers.SerializerMethodField()
    judgements = JudgementOutput(source="incident.judgements", many=True)

    class Meta(IncidentOutput.Meta):
        fields = (
            *IncidentOutput.Meta.fields,
            *("failure_ids", "nodes", "epochs", "evidence", "judgements"),
        )

    @extend_schema_field(EvidenceOutput(many=True))
    def get_evidence(self, judgement: Judgement) -> Any:
        return EvidenceOutput(evidence_of(judgement), many=True).data


class GrantOutput(serializers.ModelSerializer[Grant]):
    id = serializers.CharField(source="public_id")
    contract = serializers.CharField(source="contract.public_id")
    customer = serializers.CharField(source="contract.customer.public_id")
    year = serializers.CharField(source="year.public_id")
    assessment = serializers.CharField(source="assessment.public_id")
    state = serializers.SerializerMethodField()
    credit = serializers.SerializerMethodField()
    granted_at = Instant()

    class Meta:
        model = Grant
        fields = (
            *("id", "contract", "customer", "year", "assessment", "chain"),
            *("state", "credit", "granted_at"),
        )

    @extend_schema_field({"type": "string", "enum": ["available", "voided"]})
    def get_state(self, grant: Grant) -> str:
        return "voided" if hasattr(grant, "void") else "available"

    @extend_schema_field(CREDIT_SCHEMA)
    def get_credit(self, grant: Grant) -> dict[str, Any]:
        if grant.minor_units is None:
            return {"rate": f"{grant.rate_num}/{grant.rate_den}", "of": "next_order"}
        amount = Amount(
            minor_units=grant.minor_units, currency=grant.currency, exponent=grant.exponent
        )
        return amount.as_json()
