"""What a token may do with the books; declared to the fleet's one list at start."""

from __future__ import annotations

from typing import Final

SLA_READ: Final = "sla:read"
MEANINGS: Final = {SLA_READ: "read contracts, years, incidents, assessments and grants"}
