"""Customers, contracts and their years: where each year stands, and what it counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from fleet.admin.base import FleetAdmin, ReadOnlyAdmin
from sla.admin.parts import credit_text, link, link_to_list, table
from sla.errors import InvalidContractError
from sla.instants import to_us
from sla.models import Contract, ContractYear, Customer
from sla.selectors.contracts import version_in_force
from sla.selectors.incidents import current_judgements
from sla.selectors.years import YearFacts, year_facts
from sla.services.contracts import NewContract, check_contract, open_contract

YEAR_COLUMNS = (
    *("year", "from", "to", "state", "zero loss / counted", "excluded", "pending"),
    *("outcome", "credit", "notes"),
)


def facts_of(contract: Contract) -> list[YearFacts]:
    return year_facts(contract, to_us(timezone.now()))


def year_row(facts: YearFacts) -> tuple[object, ...]:
    counts = facts.counts
    ratio = f"{counts.zero_loss} / {counts.counted}"
    return (
        link("sla_contractyear", facts.year.pk, f"year {facts.year.index}"),
        f"{facts.year.starts_at:%Y-%m-%d %H:%M} UTC",
        f"{facts.year.ends_at:%Y-%m-%d %H:%M} UTC",
        facts.state + (f", revision {facts.revision}" if facts.revision else ""),
        ratio + (f" = {facts.percent} %" if facts.percent else ""),
        counts.excluded,
        counts.pending,
        facts.outcome or "-",
        credit_text(facts.credit),
        ", ".join(facts.notes),
    )


@admin.register(Customer)
class CustomerAdmin(FleetAdmin):
    list_display = ("name", "tenant", "public_id", "contract_numbers")
    list_select_related = ("tenant",)
    search_fields = ("name", "public_id")
    readonly_fields = ("public_id", "created_at")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("contracts")

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return (*self.readonly_fields, "tenant") if obj else self.readonly_fields

    @admin.display(description="contracts")
    def contract_numbers(self, customer: Customer) -> str:
        return ", ".join(contract.number for contract in customer.contracts.all())


if TYPE_CHECKING:
    ContractForm = forms.ModelForm[Contract]
else:
    ContractForm = forms.ModelForm


class NewContractForm(ContractForm):
    """What is signed; it is checked by the rules themselves, and every problem is shown."""

    terms = forms.JSONField(
        initial=dict,
        help_text='In the words of a case file, such as {"year_fee": "1200000.00"}.',
    )
    clusters = forms.CharField(
        required=False, help_text="Names, by commas; none covers every cluster of the tenant."
    )

    class Meta:
        model = Contract
        fields = (
            *("customer", "number", "currency", "timezone", "starts_on", "ends_on"),
            *("signed_on", "clusters"),
        )

    def clean_clusters(self) -> list[str]:
        names = str(self.cleaned_data["clusters"]).split(",")
        return [name.strip() for name in names if name.strip()]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors:
            try:
                check_contract(cleaned["customer"], self.new_contract())
            except InvalidContractError as error:
                raise forms.ValidationError(
                    [f"{fault.pointer}: {fault.detail}" for fault in error.faults]
                ) from error
        return cleaned

    def new_contract(self) -> NewContract:
        signed = self.cleaned_data
        return NewContract(
            number=signed["number"],
            currency=signed["currency"],
            timezone=signed["timezone"],
            starts_on=signed["starts_on"],
            ends_on=signed["ends_on"],
            signed_on=signed["signed_on"],
            clusters=signed["clusters"],
            terms=signed["terms"],
        )


@admin.register(Contract)
class ContractAdmin(FleetAdmin):
    """Opened here once; what it promises is amended by versions, never edited."""

    list_display = ("number", "customer", "currency", "starts_on", "ends_on", "current_year")
    list_filter = ("customer", "currency")
    list_select_related = ("customer",)
    search_fields = ("number", "public_id", "customer__name")
    shown = (
        *("public_id", "number", "customer", "currency", "timezone", "starts_on", "ends_on"),
        *("signed_on", "clusters", "terms", "years", "incidents"),
    )

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("versions", "years")

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.shown if obj else (*NewContractForm.Meta.fields, "terms")

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.shown if obj else ()

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is None:
            kwargs |= {"form": NewContractForm, "fields": NewContractForm.Meta.fields}
        return super().get_form(request, obj, change, **kwargs)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def save_form(self, request: Any, form: Any, change: bool) -> Any:
        """The service writes it, with its version and years, in place of the form."""
        if change:
            return form.instance
        return open_contract(
            customer=form.cleaned_data["customer"],
            new=form.new_contract(),
            recorded_by=request.user.get_username(),
            now=timezone.now(),
        )

    def save_model(self, request: Any, obj: Any, form: Any, change: Any) -> None:
        """Nothing is left to write."""

    def save_related(self, request: Any, form: Any, formsets: Any, change: Any) -> None:
        """There is nothing related on the form."""

    @admin.display(description="current year")
    def current_year(self, contract: Contract) -> str:
        facts = facts_of(contract)
        if not facts:
            return "not started"
        last = facts[-1]
        percent = f" = {last.percent} %" if last.percent else ""
        counts = f"{last.counts.zero_loss} / {last.counts.counted}{percent}"
        return f"year {last.year.index}, {last.state}: {counts}"

    @admin.display(description="terms")
    def terms(self, contract: Contract) -> SafeString:
        version = version_in_force(contract)
        rows = [(name, str(value)) for name, value in sorted(version.terms.items())]
        return table(("term", f"as signed in version {version.number}"), rows)

    @admin.display(description="years")
    def years(self, contract: Contract) -> SafeString:
        return table(YEAR_COLUMNS, (year_row(facts) for facts in facts_of(contract)))

    @admin.display(description="incidents")
    def incidents(self, contract: Contract) -> SafeString:
        query = f"contract__id__exact={contract.pk}"
        return link_to_list("sla_incident", query, "all incidents of this contract")


@admin.register(ContractYear)
class ContractYearAdmin(ReadOnlyAdmin):
    list_display = ("contract", "index", "starts_at", "ends_at", "state")
    list_filter = ("contract",)
    list_select_related = ("contract",)
    search_fields = ("contract__number", "public_id")
    fields = ("public_id", "contract", "result", "revisions", "incidents")
    most_incidents = 500

    @admin.display(description="state")
    def state(self, year: ContractYear) -> str:
        facts = self._facts(year)
        return facts.state if facts else "not started"

    @admin.display(description="result")
    def result(self, year: ContractYear) -> SafeString | str:
        facts = self._facts(year)
        return table(YEAR_COLUMNS, [year_row(facts)]) if facts else "not started"

    @admin.display(description="revisions")
    def revisions(self, year: ContractYear) -> SafeString:
        rows = (
            (
                link("sla_assessment", assessment.pk, f"revision {assessment.revision}"),
                f"{assessment.as_of:%Y-%m-%d %H:%M:%S} UTC",
                f"{assessment.zero_loss} / {assessment.counted}",
                assessment.outcome,
                credit_text(assessment.credit),
                ", ".join(assessment.notes),
            )
            for assessment in year.assessments.order_by("revision")
        )
        return table(("", "as of", "zero loss / counted", "outcome", "credit", "notes"), rows)

    @admin.display(description="incidents")
    def incidents(self, year: ContractYear) -> SafeString:
        judgements = current_judgements().filter(year=year)[: self.most_incidents]
        rows = (
            (
                link("sla_incident", judgement.incident_id, judgement.incident.first_event),
                f"{judgement.incident.occurred_at:%Y-%m-%d %H:%M:%S} UTC",
                judgement.incident.run,
                judgement.get_verdict_display(),
                ", ".join(judgement.reasons),
                judgement.lost_steps,
                judgement.get_excluded_display(),
            )
            for judgement in judgements
        )
        columns = ("first event", "at", "run", "verdict", "reasons", "lost steps", "excluded")
        return table(columns, rows)

    def _facts(self, year: ContractYear) -> YearFacts | None:
        return next((item for item in facts_of(year.contract) if item.year.pk == year.pk), None)
