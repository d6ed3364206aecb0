"""Tokens: kept as a peppered HMAC, checked whole, rotated by pepper, noted once a minute."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db.utils import IntegrityError

from fleet.models import Cluster, Token
from fleet.services.tokens import TokenRequestError, check_token, note_use
from fleet.tenancy import every_tenant, tenant_scope
from tests.fleet.conftest import Api, make_node, make_token, token_row

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 5, 1, tzinfo=UTC)
PEPPERS = {1: "a" * 32, 2: "b" * 32}


def checked(plaintext, now=NOW):
    with every_tenant():
        return check_token(plaintext=plaintext, now=now)


def test_only_an_hmac_is_kept(acme, settings):
    settings.TOKEN_PEPPERS = PEPPERS
    plaintext = make_token(acme, "fleet:read")

    row = token_row(plaintext)

    secret = plaintext.split(".")[1]
    assert row.pepper_id == 2
    assert row.digest == hmac.new(b"b" * 32, secret.encode(), hashlib.sha256).hexdigest()
    assert secret not in str(row.__dict__)
    assert checked(plaintext) == row


def test_a_pepper_is_rotated_without_breaking_older_tokens(acme, settings):
    settings.TOKEN_PEPPERS = {1: "a" * 32}
    old = make_token(acme, "fleet:read")
    settings.TOKEN_PEPPERS = PEPPERS
    assert checked(old) is not None
    settings.TOKEN_PEPPERS = {2: "b" * 32}
    assert checked(old) is None


def test_a_wrong_secret_and_a_wrong_key_get_the_same_answer(acme):
    plaintext = make_token(acme, "fleet:read")
    key, secret = plaintext.split(".")
    for wrong in (f"{key}.{'x' * 40}", f"unb_{'x' * 12}.{secret}", key, "", plaintext + "x"):
        answer = Api(wrong).get("/api/v1/fleet/nodes")
        assert answer.status_code == 401
        if wrong:
            assert answer.json()["detail"] == "the token is unknown, expired or disabled"


@pytest.mark.parametrize(
    "change",
    [{"is_enabled": False}, {"expires_at": NOW}, {"is_single_use": True, "used_at": NOW}],
)
def test_a_token_that_is_over_is_none(acme, change):
    plaintext = make_token(acme, "fleet:read", expires_at=NOW + timedelta(seconds=1))
    assert checked(plaintext) is not None
    with every_tenant():
        Token.objects.update(**change)
    assert checked(plaintext) is None


def test_its_use_is_noted_once_a_minute(acme):
    plaintext = make_token(acme, "fleet:read")
    for seconds, noted in ((0, 0), (59, 0), (60, 60), (119, 60)):
        with every_tenant():
            note_use(token=token_row(plaintext), now=NOW + timedelta(seconds=seconds))
        assert token_row(plaintext).last_used_at == NOW + timedelta(seconds=noted)


def test_terms_that_contradict_each_other_are_refused(acme, stranger):
    node = make_node(acme)
    with tenant_scope(stranger.pk):
        foreign = Cluster.objects.get()
    for terms in (
        {"scopes": ("dance",)},
        {"scopes": ()},
        {"scopes": ("events:write",)},
        {"scopes": ("events:write",), "tenant": None, "sources": ("/clusters/acme-1/*",)},
        {"scopes": ("events:write",), "sources": ("/clusters/strange-1/*",)},
        {"scopes": ("events:write",), "sources": ("*",)},
        {"scopes": ("events:write",), "sources": ("/clusters/*",)},
        {"scopes": ("heartbeats:write",), "cluster": foreign},
        {"scopes": ("heartbeats:write",), "node": node},
    ):
        tenant = terms.pop("tenant", acme)
        with pytest.raises(TokenRequestError):
            make_token(tenant, *terms.pop("scopes"), **terms)


def test_the_database_refuses_a_node_without_its_cluster(acme):
    node = make_node(acme)
    with pytest.raises(IntegrityError, match="fleet_token_node_has_its_cluster"), every_tenant():
        Token.objects.create(
            tenant=acme, label="x", key="k", pepper_id=1, digest="d", scopes=[], node=node
        )


def test_commands_make_a_tenant_and_a_token_that_works(db, capsys):
    call_command("create_tenant", "Acme", cluster=["acme-1"])
    call_command("create_tenant", "Acme", cluster=["acme-1", "acme-2"])
    capsys.readouterr()

    call_command("create_token", "reader", scope=["fleet:read"], tenant="Acme")

    plaintext = capsys.readouterr().out.strip()
    assert Api(plaintext).get("/api/v1/fleet/nodes").json()["results"] == []
    with every_tenant():
        assert [c.name for c in Cluster.objects.all()] == ["acme-1", "acme-2"]
    for wrong in ({"tenant": "Nobody"}, {"tenant": "Acme", "cluster": "x"}, {"scope": ["dance"]}):
        with pytest.raises(CommandError):
            call_command("create_token", "x", **{"scope": ["fleet:read"], **wrong})
    with pytest.raises(CommandError, match="belongs to another tenant"):
        call_command("create_tenant", "Other", cluster=["acme-1"])
