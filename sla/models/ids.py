"""Public ids of the books: a prefix that says what it is, then a UUIDv7, so they sort by time."""

from __future__ import annotations

import os
import time

from runtime.events import uuid7


def _public_id(prefix: str) -> str:
    return f"{prefix}_{uuid7(time.time_ns() // 1000, os.urandom(10)).replace('-', '')}"


def customer_id() -> str:
    return _public_id("cus")


def contract_id() -> str:
    return _public_id("ctr")


def year_id() -> str:
    return _public_id("cyr")


def incident_id() -> str:
    return _public_id("inc")


def assessment_id() -> str:
    return _public_id("asm")


def grant_id() -> str:
    return _public_id("grt")
