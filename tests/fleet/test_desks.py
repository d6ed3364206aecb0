"""The admin: an operator finds nodes, GPUs, runs and events; whose they are still counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.admin.sites import site
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from fleet.models import Event, Node, User
from fleet.tenancy import every_tenant
from tests.fleet.conftest import make_token
from tests.fleet.test_resources import fill

pytestmark = pytest.mark.django_db
PROJECT = Path(__file__).resolve().parents[2]
MODELS = [model for model in site._registry if model._meta.app_label == "fleet"]


@pytest.fixture
def vendor(db):
    User.objects.create_superuser("vendor", password="x")
    return signed_in("vendor")


def signed_in(username):
    client = Client()
    assert client.login(username=username, password="x")
    return client


def address(model, *args):
    page = "change" if args else "changelist"
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_list_and_page_opens_in_few_queries(
    vendor, acme, agent, event, model, django_assert_max_num_queries
):
    fill(acme, 3)
    make_token(acme, "fleet:read")
    agent.deliver([event(), event("bad", time="x")])
    vendor.get(reverse("admin:index"))

    with django_assert_max_num_queries(12):
        page = vendor.get(address(model), {"q": "n"})
    assert page.status_code == 200
    with every_tenant():
        first = model.objects.first()
    if first is not None:
        assert vendor.get(address(model, first.pk)).status_code == 200


def test_a_person_of_a_tenant_sees_that_tenant_only(acme, stranger, vendor):
    fill(acme), fill(stranger, 1, "s")
    person = User.objects.create_user("ann", password="x", is_staff=True, tenant=acme)
    person.user_permissions.set(Permission.objects.filter(content_type__app_label="fleet"))
    nodes = address(next(m for m in MODELS if m.__name__ == "Node"))

    own = signed_in("ann").get(nodes).content.decode()
    everything = vendor.get(nodes).content.decode()

    assert ("n0" in own, "s0" in own) == (True, False)
    assert ("n0" in everything, "s0" in everything) == (True, True)
    assert Client().get(nodes).status_code == 302


def test_an_operator_sees_which_ranks_and_spares_are_where(acme, vendor):
    fill(acme)
    workers = [{"name": "n0/0#1", "role": "member", "rank": 3}]
    workers.append({"name": "n0/1#1", "role": "spare", "rank": None})
    with every_tenant():
        Node.objects.filter(name="n0").update(running=[{"id": "r7", "workers": workers}])

    page = vendor.get(address(Node)).content.decode()

    assert "r7: rank 3, spare" in page


def test_events_are_shown_and_never_edited(vendor, agent, event):
    agent.deliver([event()])
    with every_tenant():
        row = Event.objects.get()

    page = vendor.get(address(Event, row.pk)).content.decode()

    assert "&quot;committed_step&quot;: 7" in page
    assert 'name="_save"' not in page
    assert vendor.post(address(Event, row.pk), {"type": "x"}).status_code == 403
    assert vendor.get(reverse("admin:fleet_event_add")).status_code == 403


def test_the_desks_work_under_the_plain_theme():
    done = subprocess.run(
        [sys.executable, "-c", (
            "import config.settings as s; s.INSTALLED_APPS = [a for a in s.INSTALLED_APPS"
            " if not a.startswith('unfold')]\n"
            "import django; django.setup()\n"
            "from django.core.management import call_command; call_command('check')\n"
            "from fleet.admin.base import FleetAdmin; print(FleetAdmin.__mro__[1].__module__)"
        )],
        cwd=PROJECT, capture_output=True, text=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "django.contrib.admin.options"


def test_the_schema_is_valid_and_served(client):
    done = subprocess.run(
        [sys.executable, "manage.py", "spectacular", "--validate", "--fail-on-warn"],
        cwd=PROJECT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    served = client.get("/api/v1/schema")
    assert served.status_code == 200
    for path in ("/api/v1/events:", "/api/v1/fleet/heartbeats:", "/api/v1/fleet/runs:"):
        assert path in served.content.decode()
    assert client.get("/api/v1/docs").status_code == 200


def test_what_is_not_there_is_a_problem_too(client):
    answer = client.get("/api/v1/nothing")
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")
