"""`manage.py replay FILE [--json]`: judge a case file with the very functions of the service."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from rich.console import Console

from sla.case_files import first_difference, read_case_file
from sla.domain.case import BadCase
from sla.domain.replay import replay
from sla.replay_view import print_tables


class Command(BaseCommand):
    """Exit 0: done. 1: the file's `expect` differs. 2: bad input, one line per problem."""

    help = "Replay a case file: incidents, contract years and credits from its events alone."
    requires_system_checks = ()  # it needs no database and must start fast
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="a case, or {case, expect} to compare with")
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["file"]
        try:
            case_file = read_case_file(path)
        except BadCase as bad:
            for problem in bad.problems:
                self._complain(f"{path}: {problem}")
            sys.exit(2)
        document = replay(case_file.case)
        if options["json"]:
            self.stdout.write(json.dumps(document))
        else:
            print_tables(document, _console())
        if case_file.has_expect:
            difference = first_difference(case_file.expect, document)
            if difference is not None:
                self._complain(f"{path}: expect differs: {difference}")
                sys.exit(1)

    def _complain(self, line: str) -> None:
        self.stderr.write(line.encode(errors="backslashreplace").decode())


def _console() -> Console:
    """As wide as the terminal; in a pipe, wide enough that nothing folds."""
    return Console(width=None if sys.stdout.isatty() else 160)
