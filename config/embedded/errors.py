"""The one error of the embedded services; its text is one line that an operator can act on."""

from __future__ import annotations


class EmbeddedError(Exception):
    pass
