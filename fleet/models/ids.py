"""Public ids: a prefix that says what it is, then a UUIDv7, so they sort by time of making."""

from __future__ import annotations

import os
import time

from runtime.events import uuid7


def _public_id(prefix: str) -> str:
    return f"{prefix}_{uuid7(time.time_ns() // 1000, os.urandom(10)).replace('-', '')}"


def tenant_id() -> str:
    return _public_id("ten")


def node_id() -> str:
    return _public_id("nod")


def gpu_id() -> str:
    return _public_id("gpu")


def order_id() -> str:
    return _public_id("ord")


def lease_id() -> str:
    return _public_id("lea")


def token_id() -> str:
    return _public_id("tok")
