"""The replay document as tables for a person; it computes nothing but the display of a ratio."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sla.domain.assessment import percent_text


def print_tables(document: dict[str, Any], console: Console) -> None:
    console.print(_years(document["years"]))
    console.print(_incidents(document["incidents"]))
    counts = ", ".join(f"{count} {status}" for status, count in document["events"].items())
    console.print(Text(f"events: {counts}"))
    console.print(Text(f"digest: {document['digest']}"))


def _years(years: list[dict[str, Any]]) -> Table:
    table = _table(
        "Contract years",
        *("year", "from, to", "state", "zero loss / counted", "excluded", "pending"),
        *("outcome", "credit", "notes"),
    )
    for year in years:
        percent = percent_text(year["zero_loss"], year["counted"])
        ratio = f"{year['zero_loss']} / {year['counted']}"
        cells = (
            year["index"],
            f"{year['start']}\n{year['end']}",
            year["state"] + (f"\nrevision {year['revision']}" if year["revision"] else ""),
            ratio + (f"\n{percent} %" if percent else ""),
            year["excluded"],
            year["pending"],
            year["outcome"] or "-",
            _credit(year["credit"]),
            "\n".join(year["notes"]),
        )
        table.add_row(*(_cell(cell) for cell in cells))
    return table


def _incidents(incidents: list[dict[str, Any]]) -> Table:
    table = _table(
        "Incidents",
        *("at", "run", "first event", "year", "failures", "verdict", "lost steps", "excluded"),
    )
    for incident in incidents:
        cells = (
            incident["occurred_at"],
            incident["run"],
            incident["first_event"],
            incident["year"] or "-",
            incident["failures"],
            "\n  ".join([incident["verdict"], *incident["reasons"]]),
            incident["lost_steps"],
            incident["excluded"] or "",
        )
        table.add_row(*(_cell(cell) for cell in cells))
    return table


def _table(title: str, *columns: str) -> Table:
    """Cells fold where a terminal is narrow: nothing is cut off."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _credit(credit: dict[str, Any] | None) -> str:
    if credit is None:
        return "-"
    if "rate" in credit:
        return f"{credit['rate']} of the next order"
    return f"{credit['amount']} {credit['currency']}"


def _cell(value: object) -> Text:
    """Plain text: a run may be named like markup, and a name may hold half a surrogate pair."""
    return Text(str(value).encode(errors="backslashreplace").decode())
