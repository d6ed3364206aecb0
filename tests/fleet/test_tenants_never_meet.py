"""Row-level security by SQL: what one tenant wrote, another neither sees nor touches."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection, transaction
from django.db.utils import DatabaseError, InternalError, ProgrammingError
from django.utils import timezone

from fleet.models import Cluster, Event, Node, NodeChange, Tenant
from fleet.tenancy import every_tenant, tenant_scope

pytestmark = pytest.mark.django_db


def rows(sql: str, *parameters: object) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def make_node(tenant: Tenant, name: str) -> Node:
    with tenant_scope(tenant.pk):
        return Node.objects.create(tenant=tenant, cluster=Cluster.objects.get(), name=name)


def make_event(tenant: Tenant) -> Event:
    with tenant_scope(tenant.pk):
        return Event.objects.create(
            tenant=tenant, source="/clusters/acme-1/nodes/n1/agent", event_id="e1",
            type="source.opened", time_us=1, received_us=2, status="accepted", body=b"{}",
            body_sha256="0" * 64, content_sha256="0" * 64,
        )  # fmt: skip


def test_tests_run_as_the_role_that_serves():
    assert rows("SELECT current_user")[0] == ("unbroken_app",)
    assert rows(
        "SELECT rolsuper, rolbypassrls, rolcreatedb FROM pg_roles WHERE rolname = current_user"
    ) == [(False, False, False)]
    assert rows("SELECT count(*) FROM pg_class WHERE relowner = current_user::regrole") == [(0,)]


def test_every_table_with_a_tenant_is_isolated():
    tables = {
        model._meta.db_table
        for model in apps.get_models()
        if model._meta.app_label in ("fleet", "sla")
        and (model is Tenant or any(f.name == "tenant" for f in model._meta.fields))
        and model._meta.model_name != "user"
    }

    isolated = rows(
        "SELECT c.relname FROM pg_class c JOIN pg_policy p ON p.polrelid = c.oid"
        " WHERE c.relrowsecurity AND c.relforcerowsecurity"
    )

    assert len(tables) >= 12
    assert tables <= {name for (name,) in isolated}


def test_a_tenant_sees_its_own_rows_only(acme, stranger):
    make_node(acme, "n1")
    make_node(stranger, "n2")

    with tenant_scope(acme.pk):
        assert rows("SELECT name FROM fleet_node") == [("n1",)]
        assert rows("SELECT name FROM fleet_tenant") == [("Acme",)]
        assert rows("SELECT name FROM fleet_cluster") == [("acme-1",)]
    with every_tenant():
        assert rows("SELECT name FROM fleet_node ORDER BY name") == [("n1",), ("n2",)]


def test_without_a_scope_nothing_is_seen_and_nothing_written(acme):
    make_node(acme, "n1")

    assert rows("SELECT count(*) FROM fleet_node") == [(0,)]
    with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
        rows("INSERT INTO fleet_tenant (public_id, name, created_at) VALUES ('x', 'x', now())")


def test_a_tenant_cannot_write_into_another(acme, stranger):
    node = make_node(stranger, "n2")

    with tenant_scope(acme.pk):
        with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
            Node.objects.create(tenant=stranger, cluster_id=node.cluster_id, name="planted")
        assert Node.objects.filter(pk=node.pk).update(name="taken") == 0
        assert Node.objects.filter(pk=node.pk).delete() == (0, {})
    with tenant_scope(stranger.pk):
        node.refresh_from_db()
        assert node.name == "n2"


def test_scopes_nest_and_end_where_they_began(acme, stranger):
    with tenant_scope(acme.pk):
        with every_tenant():
            assert Tenant.objects.count() == 2
        assert Tenant.objects.get() == acme
        with pytest.raises(ZeroDivisionError), tenant_scope(stranger.pk):
            _ = 1 / 0
        assert Tenant.objects.get() == acme
    assert Tenant.objects.count() == 0


@pytest.mark.parametrize(
    "statement", ["UPDATE fleet_event SET type = 'x'", "DELETE FROM fleet_event"]
)
def test_events_are_append_only_for_the_role_that_serves(acme, statement):
    make_event(acme)

    with tenant_scope(acme.pk):
        with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            rows(statement)
        with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            rows("TRUNCATE fleet_event")


def test_the_trigger_binds_the_owner_too(django_db_blocker):
    names = rows(
        "SELECT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " WHERE t.tgname LIKE 'pgtrigger_append_only%%' AND t.tgenabled = 'O' ORDER BY 1"
    )
    assert names[:3] == [("fleet_event",), ("fleet_eventaside",), ("fleet_nodechange",)]


def test_the_role_that_serves_cannot_lift_a_policy(acme):
    for statement in (
        "ALTER TABLE fleet_event DISABLE ROW LEVEL SECURITY",
        "DROP POLICY tenant_isolation ON fleet_event",
        "ALTER TABLE fleet_event DISABLE TRIGGER ALL",
        "UPDATE django_migrations SET name = 'x'",
        "SET ROLE unbroken_owner",
        "CREATE TABLE mine (id int)",
    ):
        with pytest.raises((ProgrammingError, InternalError, DatabaseError)), transaction.atomic():
            rows(statement)


def test_a_node_change_needs_a_node_of_the_same_tenant_to_be_seen(acme, stranger):
    node = make_node(acme, "n1")
    with tenant_scope(acme.pk):
        NodeChange.objects.create(
            tenant=acme, node=node, action="cordoned", reason="hot", actor="ann", at=timezone.now()
        )

    with tenant_scope(stranger.pk):
        assert NodeChange.objects.count() == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("turn", [1, 2])
def test_transactional_tests_leave_nothing_for_the_next(turn):
    with every_tenant():
        assert Tenant.objects.count() == 0
        Tenant.objects.create(name="left behind")
