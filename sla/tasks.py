"""Celery's sweepers of the books: each asks the database what is due, so a lost one costs delay."""

from __future__ import annotations

import logging
from typing import Any

from celery import shared_task

from sla.services.closing import close_due_years as close_years
from sla.services.judging import judge_due_runs as judge_runs

log = logging.getLogger("sla.tasks")


@shared_task(name="sla.judge_due_runs")
def judge_due_runs() -> None:
    sweep = judge_runs()
    if sweep.judged or sweep.failed:
        log.info("judged %s runs, %s failed, %s new", sweep.judged, sweep.failed, sweep.appended)


@shared_task(name="sla.close_due_years")
def close_due_years() -> None:
    closing = close_years()
    if closing.looked_at or closing.failed:
        log.info(
            "looked at %s contracts, %s failed, %s revisions",
            *(closing.looked_at, closing.failed, closing.appended),
        )


def ring(**_: Any) -> None:
    """Something came in: have it judged now rather than at beat's next turn."""
    judge_due_runs.apply_async(retry=False, expires=30)
