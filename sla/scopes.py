"""What a token may do with the books; declared to the fleet's one list at start."""

from __future__ import annotations

from typing import Final

BILLING_READ: Final = "billing:read"
MEANINGS: Final = {BILLING_READ: "read contracts, years, incidents, assessments and grants"}
