"""Airflow's connections to Google's and Azure's stores: which options the stores' libraries get of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_llmengine.exceptions import ConnectionUnusableError
from airflow_llmengine.hooks import other_store_credentials
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.storage_credentials import public_options
from airflow_llmengine.storage.filesystem import Storage
from tests.airflow.operators_in_tests import connection

SECRET = "a-made-up-secret"


@pytest.fixture(scope="module")
def key() -> dict[str, str]:
    """A service account's key, as Google hands it out."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "private_key": private.decode(),
        "client_email": "worker@project.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
    }


def options(monkeypatch: pytest.MonkeyPatch, **store: Any) -> dict[str, dict[str, Any]]:
    """What the hook makes of a storage connection."""
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_conn_id="store"))
    return LLMEngineHook().storage_options


def google(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> dict[str, dict[str, Any]]:
    return options(monkeypatch, conn_type="google_cloud_platform", extra=extra)


def test_a_service_accounts_key_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch, key: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "key.json").write_text(json.dumps(key))
    for extra in (
        {"keyfile_dict": json.dumps(key), "project": "p"},
        {"keyfile_dict": key},
        {"extra__google_cloud_platform__keyfile_dict": json.dumps(key)},
        {"key_path": str(tmp_path / "key.json")},
    ):
        found = google(monkeypatch, **extra)
        assert found == {"gs": {"token": key}}
    # Its library takes it.
    backend, _ = Storage(found).backend_of("gs://bucket/file")
    credentials = backend._filesystem.credentials.credentials  # type: ignore[attr-defined]
    assert credentials.service_account_email == key["client_email"]
    assert public_options(found) == {}


def test_a_google_connection_without_a_key_leaves_it_to_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert google(monkeypatch, project="p") == {"gs": {}}
    assert google(monkeypatch, is_anonymous=True) == {"gs": {"token": "anon"}}


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"key_secret_name": "s"}, "store gives its credentials by key_secret_name, which can't be handed to a worker"),
        ({"keyfile_dict": SECRET}, "keyfile_dict holds no service account's key as JSON"),
        ({"keyfile_dict": '{"client_secret": "a-made-up-secret"}'}, "keyfile_dict holds no service account's key"),
        ({"key_path": "/no/such/file"}, "the file /no/such/file, its key_path, holds no service account's key"),
    ],
)
def test_a_google_connection_that_is_of_no_use_is_told(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConnectionUnusableError, match=told) as caught:
        google(monkeypatch, **extra)

    assert SECRET not in str(caught.value)
    assert "let the machine bring the credentials" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "expected", "public"),
    [
        ({"login": "me", "password": SECRET}, {"account_name": "me", "account_key": SECRET}, {"account_name": "me"}),
        (
            {"host": "https://me.blob.core.windows.net/", "extra": {"shared_access_key": SECRET}},
            {"account_name": "me", "account_host": "me.blob.core.windows.net", "account_key": SECRET},
            {"account_name": "me", "account_host": "me.blob.core.windows.net"},
        ),
        (
            {"login": "me", "extra": {"sas_token": f"https://me.blob.core.windows.net?{SECRET}"}},
            {"account_name": "me", "sas_token": SECRET},
            {"account_name": "me"},
        ),
        (
            {"host": "me.blob.core.windows.net", "login": "client", "password": SECRET, "extra": {"tenant_id": "t"}},
            {
                "account_name": "me",
                "account_host": "me.blob.core.windows.net",
                "tenant_id": "t",
                "client_id": "client",
                "client_secret": SECRET,
            },
            {"account_name": "me", "account_host": "me.blob.core.windows.net"},
        ),
        ({"extra": {"connection_string": SECRET}}, {"connection_string": SECRET}, {}),
        ({"login": "me"}, {"account_name": "me"}, {"account_name": "me"}),
    ],
    ids=["key", "shared key", "signature", "client", "connection string", "machine"],
)
def test_an_azure_connection(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], expected: dict[str, Any], public: dict[str, Any]
) -> None:
    found = options(monkeypatch, conn_type="wasb", **fields)

    assert found == {"az": expected}
    assert public_options(found) == ({"az": public} if public else {})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "names no storage account: fill in its host"),
        (
            {"login": "me", "extra": {"managed_identity_client_id": "m"}},
            "by managed_identity_client_id, which can't be",
        ),
    ],
)
def test_an_azure_connection_that_is_of_no_use_is_told(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConnectionUnusableError, match=told):
        options(monkeypatch, conn_type="wasb", **fields)


def test_what_is_secret_is_masked_in_logs(monkeypatch: pytest.MonkeyPatch, key: dict[str, str]) -> None:
    masked: list[Any] = []
    monkeypatch.setattr(other_store_credentials, "mask_secret", masked.append)

    google(monkeypatch, keyfile_dict=json.dumps(key))
    options(monkeypatch, conn_type="wasb", login="me", extra={"sas_token": SECRET})

    assert {key["private_key"], SECRET} <= set(masked)


def test_a_way_to_sign_in_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"gs": {"token": "google_default"}}
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_options=ways))

    assert LLMEngineHook().storage_options == ways


@pytest.mark.parametrize(("conn_type", "protocol"), [("google_cloud_platform", "gs"), ("wasb", "az")])
def test_the_button_test_says_that_it_does_not_try_them(
    monkeypatch: pytest.MonkeyPatch, conn_type: str, protocol: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": conn_type, "login": "me"}))
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_conn_id="store"))

    works, said = LLMEngineHook().test_connection()

    assert works, said
    assert f"store is for {protocol}://, and is tried when a job runs" in said
