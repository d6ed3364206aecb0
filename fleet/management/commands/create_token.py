"""Makes a bearer token and prints it, this once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from fleet.models import Cluster, Node, Tenant
from fleet.scopes import declared_scopes
from fleet.services.tokens import TokenRequestError, TokenTerms, mint_token
from fleet.tenancy import every_tenant


class Command(BaseCommand):
    help = "Makes a bearer token and prints it, this once. Nothing can show it again."

    def add_arguments(self, parser: CommandParser) -> None:
        scopes = "; ".join(f"{name}: {meaning}" for name, meaning in declared_scopes().items())
        parser.add_argument("label", help="who it is for, as lists show it")
        parser.add_argument("--scope", action="append", default=[], help=scopes)
        parser.add_argument("--tenant", help="its name; without one, the vendor's own token")
        parser.add_argument("--cluster")
        parser.add_argument("--node", help="a node of the cluster")
        parser.add_argument(
            "--source", action="append", default=[], help="may end in *; may be repeated"
        )
        parser.add_argument("--single-use", action="store_true", help="for an enrolment")
        parser.add_argument("--expires-days", type=int)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with every_tenant():
                minted = mint_token(terms=_terms(options))
        except TokenRequestError as error:
            raise CommandError(error.detail) from error
        self.stdout.write(minted.plaintext)


def _terms(options: dict[str, Any]) -> TokenTerms:
    tenant = _named(Tenant, options["tenant"], name=options["tenant"])
    cluster = _named(Cluster, options["cluster"], name=options["cluster"])
    node = _named(Node, options["node"], name=options["node"], cluster=cluster)
    days = options["expires_days"]
    return TokenTerms(
        label=options["label"],
        scopes=tuple(options["scope"]),
        tenant=tenant,
        cluster=cluster,
        node=node,
        sources=tuple(options["source"]),
        is_single_use=options["single_use"],
        expires_at=None if days is None else timezone.now() + timedelta(days=days),
    )


def _named(model: Any, given: str | None, **fields: Any) -> Any:
    if given is None:
        return None
    found = model.objects.filter(**fields).first()
    if found is None:
        raise CommandError(f"there is no {model._meta.verbose_name} {given}")
    return found
