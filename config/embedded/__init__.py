"""The project's own private PostgreSQL and Valkey: join them, leave them, see how they are.

No Django in here: the keeper process and settings both import it, and it must start fast.
"""

from __future__ import annotations

from config.embedded.errors import EmbeddedError
from config.embedded.membership import join, keeper_in_use, leave, state
from config.embedded.place import Place, find_place

__all__ = ["EmbeddedError", "Place", "find_place", "join", "keeper_in_use", "leave", "state"]
