"""What the fleet tells whoever listens, after the commit; it knows none of its listeners.

`events_accepted(sender=None, tenant_id, runs, sources, received_us)`: a delivery stored something
new. A listener that fails is logged and delays nobody: what is due is found in the database too.
"""

from __future__ import annotations

from django.dispatch import Signal

events_accepted = Signal()
