"""Incidents with their verdict, the reasons for it and the events that it rests on."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from fleet.admin.base import ReadOnlyAdmin
from fleet.models import Event
from sla.admin.parts import lines, link, table
from sla.models import Incident, Judgement
from sla.models.choices import ExclusionReason, Verdict
from sla.selectors.incidents import evidence_of


class VerdictFilter(admin.SimpleListFilter):
    title = "verdict"
    parameter_name = "verdict"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [*Verdict.choices, ("excluded", "Excluded")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        if value == "excluded":
            return queryset.exclude(now_excluded="")
        return queryset.filter(now_verdict=value, now_excluded="")


@admin.register(Incident)
class IncidentAdmin(ReadOnlyAdmin):
    """An incident by its last judgement; one that was withdrawn is not shown."""

    list_display = (
        *("occurred_at", "run", "contract", "year", "verdict", "reasons", "lost_steps"),
        *("excluded", "first_event"),
    )
    list_filter = (VerdictFilter, "contract", "kind")
    list_select_related = ("contract",)
    search_fields = ("run", "public_id", "first_event", "contract__number")
    date_hierarchy = "occurred_at"
    ordering = ("-occurred_at", "-id")
    fields = (
        *("public_id", "contract", "year", "run", "kind", "occurred_at", "first_event"),
        *("verdict", "reasons", "lost_steps", "excluded", "failures", "nodes"),
        *("evidence", "judgements"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        last = Judgement.objects.filter(incident=OuterRef("pk")).order_by("-number")
        incidents: QuerySet[Any] = super().get_queryset(request)
        judged: QuerySet[Any] = incidents.annotate(
            now_withdrawn=Subquery(last.values("is_withdrawn")[:1]),
            now_verdict=Subquery(last.values("verdict")[:1]),
            now_reasons=Subquery(last.values("reasons")[:1]),
            now_lost_steps=Subquery(last.values("lost_steps")[:1]),
            now_excluded=Subquery(last.values("excluded")[:1]),
            now_year=Subquery(last.values(index=F("year__index"))[:1]),
        ).filter(now_withdrawn=False)
        return judged

    @admin.display(description="verdict", ordering="now_verdict")
    def verdict(self, incident: Any) -> str:
        return str(Verdict(incident.now_verdict).label)

    @admin.display(description="reasons")
    def reasons(self, incident: Any) -> str:
        return ", ".join(incident.now_reasons) or "-"

    @admin.display(description="lost steps", ordering="now_lost_steps")
    def lost_steps(self, incident: Any) -> int:
        return int(incident.now_lost_steps)

    @admin.display(description="excluded", ordering="now_excluded")
    def excluded(self, incident: Any) -> str:
        reason = incident.now_excluded
        return str(ExclusionReason(reason).label) if reason else "-"

    @admin.display(description="year", ordering="now_year")
    def year(self, incident: Any) -> str:
        return str(incident.now_year) if incident.now_year else "outside every year"

    @admin.display(description="failures")
    def failures(self, incident: Incident) -> SafeString | str:
        return lines(self._last(incident).failure_ids) or "none was reported"

    @admin.display(description="failed nodes")
    def nodes(self, incident: Incident) -> str:
        return ", ".join(self._last(incident).nodes) or "-"

    @admin.display(description="evidence")
    def evidence(self, incident: Incident) -> SafeString:
        """Every event the verdict rests on, linked to its bytes as they were received."""
        found = evidence_of(self._last(incident))
        ids = {
            (event.source, event.event_id): event.pk
            for event in Event.objects.filter(event_id__in=[item["id"] for item in found]).only(
                "source", "event_id"
            )
        }
        rows = (
            (
                link("fleet_event", ids[item["source"], item["id"]], item["id"]),
                item["type"],
                item["time"],
                item["source"],
                item["sha256"],
            )
            for item in found
        )
        return table(("event", "type", "time", "source", "SHA-256 of its bytes"), rows)

    @admin.display(description="judgements")
    def judgements(self, incident: Incident) -> SafeString:
        rows = (
            (
                judgement.number,
                f"{judgement.judged_at:%Y-%m-%d %H:%M:%S} UTC",
                "withdrawn" if judgement.is_withdrawn else judgement.get_verdict_display(),
                ", ".join(judgement.reasons),
                judgement.lost_steps,
                judgement.get_excluded_display(),
                judgement.rules_version,
            )
            for judgement in incident.judgements.order_by("number")
        )
        columns = ("", "judged", "verdict", "reasons", "lost steps", "excluded", "rules")
        return table(columns, rows)

    def _last(self, incident: Incident) -> Judgement:
        return incident.judgements.order_by("-number")[0]
