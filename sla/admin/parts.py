"""Small tables and words that the desk's pages share; everything in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from sla.domain.money import Amount

Cell = object


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> SafeString:
    """A plain table; it looks the same under any theme."""
    head = format_html_join(
        "", "<th style='text-align:left;padding:4px 12px'>{}</th>", zip(columns)
    )
    body = format_html_join(
        "",
        "<tr>{}</tr>",
        (
            (format_html_join("", "<td style='padding:4px 12px'>{}</td>", ((c,) for c in row)),)
            for row in rows
        ),
    )
    return format_html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", head, body)


def link(model: str, pk: int, text: object) -> SafeString:
    return format_html('<a href="{}">{}</a>', reverse(f"admin:{model}_change", args=[pk]), text)


def link_to_list(model: str, query: str, text: object) -> SafeString:
    return format_html('<a href="{}?{}">{}</a>', reverse(f"admin:{model}_changelist"), query, text)


def lines(texts: Iterable[object]) -> SafeString:
    return format_html_join(mark_safe("<br>"), "{}", ((text,) for text in texts))


def credit_text(credit: dict[str, object] | None) -> str:
    """`300.00 USD`, `1/4 of the next order`, or a dash."""
    if credit is None:
        return "-"
    if "rate" in credit:
        return f"{credit['rate']} of the next order"
    return f"{credit['amount']} {credit['currency']}"


def amount_text(minor_units: int, currency: str, exponent: int) -> str:
    return f"{Amount(minor_units=minor_units, currency=currency, exponent=exponent)} {currency}"
