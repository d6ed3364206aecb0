#!/usr/bin/env python
"""The one door for commands; it turns what the operator can mend into one line, not a traceback."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db.utils import OperationalError

    from config.embedded import EmbeddedError

    try:
        execute_from_command_line(sys.argv)
    except (ImproperlyConfigured, EmbeddedError) as error:
        sys.exit(f"manage.py: {error}")
    except OperationalError as error:
        first_line = str(error).strip().splitlines()[0]
        sys.exit(f"manage.py: the database cannot be used: {first_line}")


if __name__ == "__main__":
    main()
