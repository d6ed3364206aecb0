"""Makes tenants and their clusters."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction

from fleet.errors import FleetError
from fleet.models import Cluster, Tenant


class TenantRequestError(FleetError):
    code = "tenant-request"
    status = 422
    title = "Such a tenant or cluster cannot be made"


def ensure_tenant(*, name: str, clusters: tuple[str, ...]) -> Tenant:
    """The tenant with these clusters; what exists stays. Call in `every_tenant`.

    Raises TenantRequestError: a bad name, or a cluster that belongs to another tenant.
    """
    with transaction.atomic():
        tenant, _ = Tenant.objects.get_or_create(name=name)
        for cluster_name in clusters:
            found = Cluster.objects.filter(name=cluster_name).first()
            if found is None:
                cluster = Cluster(tenant=tenant, name=cluster_name)
                try:
                    cluster.clean_fields()
                except ValidationError as error:
                    raise TenantRequestError(
                        f"cluster {cluster_name!r}: {error.messages[0]}"
                    ) from error
                cluster.save()
            elif found.tenant_id != tenant.pk:
                raise TenantRequestError(f"the cluster {cluster_name} belongs to another tenant")
    return tenant
