"""From Airflow's connections to Google's and Azure's stores to the options of the libraries that open them.

The connections are read as their providers read them, names of older Airflow included; neither need be installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk.log import mask_secret

from airflow_llmengine.exceptions import ConnectionUnusableError

GOOGLE_CONNECTION_TYPE = "google_cloud_platform"
AZURE_CONNECTION_TYPE = "wasb"

_OTHER_GOOGLE_WAYS = ("key_secret_name", "credential_config_file", "impersonation_chain", "idp_issuer_url")
_OTHER_AZURE_WAYS = ("managed_identity_client_id", "workload_identity_tenant_id")
_MACHINE = "leave storage_conn_id empty and let the machine bring the credentials"


def google_options(connection: Any) -> dict[str, Any]:
    """Options of gcsfs: the service account's key, where the connection has one.

    Not its project: gcsfs takes a machine's own credentials only where their project is the same.

    Raises:
        ConnectionUnusableError: It gives its credentials in another way, or its key is none.
    """
    extra = connection.extra_dejson
    fields = {
        name: extra.get(name) or extra.get(f"extra__google_cloud_platform__{name}")
        for name in ("keyfile_dict", "key_path", "is_anonymous", *_OTHER_GOOGLE_WAYS)
    }
    _refuse_others(connection, fields, _OTHER_GOOGLE_WAYS, "keyfile_dict or key_path")
    if fields["keyfile_dict"] or fields["key_path"]:
        key = _service_account(connection.conn_id, fields)
        mask_secret(key["private_key"])
        return {"token": key}
    return {"token": "anon"} if fields["is_anonymous"] else {}


def _service_account(conn_id: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The key itself, wherever it is: a worker elsewhere does not have Airflow's files."""
    key, where = fields["keyfile_dict"], "keyfile_dict"
    try:
        if not key:
            where = f"the file {fields['key_path']}, its key_path,"
            key = Path(fields["key_path"]).read_text()
        key = json.loads(key) if isinstance(key, str) else key
    except (OSError, ValueError):
        # Its message could quote the key.
        key = None
    if not isinstance(key, dict) or "private_key" not in key:
        raise ConnectionUnusableError(
            f"Of the storage connection {conn_id}, {where} holds no service account's key as JSON: correct it, or "
            f"{_MACHINE}."
        )
    return key


def azure_options(connection: Any) -> dict[str, Any]:
    """Options of adlfs: the account, and its key, signature or client.

    Raises:
        ConnectionUnusableError: It gives its credentials in another way, or names no account.
    """
    extra = connection.extra_dejson
    fields = {
        name: extra.get(name) or extra.get(f"extra__wasb__{name}")
        for name in ("connection_string", "shared_access_key", "sas_token", "tenant_id", *_OTHER_AZURE_WAYS)
    }
    _refuse_others(connection, fields, _OTHER_AZURE_WAYS, "a connection_string, a key or a sas_token")
    for secret in ("connection_string", "shared_access_key", "sas_token"):
        mask_secret(fields[secret])
    if fields["connection_string"]:
        return {"connection_string": fields["connection_string"]}
    host = urlsplit(connection.host if "//" in (connection.host or "") else f"//{connection.host or ''}").netloc
    account = host.partition(".")[0] if fields["tenant_id"] or host else connection.login
    if not account:
        raise ConnectionUnusableError(
            f"The storage connection {connection.conn_id} names no storage account: fill in its host, as "
            "account.blob.core.windows.net, or its login."
        )
    options = {"account_name": account, "account_host": host}
    if fields["tenant_id"]:
        options |= {
            "tenant_id": fields["tenant_id"],
            "client_id": connection.login,
            "client_secret": connection.password,
        }
    elif fields["sas_token"]:
        options["sas_token"] = fields["sas_token"].partition("?")[2] or fields["sas_token"]
    else:
        options["account_key"] = fields["shared_access_key"] or connection.password
    return {name: value for name, value in options.items() if value}


def _refuse_others(connection: Any, fields: dict[str, Any], ways: tuple[str, ...], instead: str) -> None:
    for way in ways:
        if fields[way]:
            raise ConnectionUnusableError(
                f"The storage connection {connection.conn_id} gives its credentials by {way}, which can't be handed to "
                f"a worker: give {instead}, or {_MACHINE}."
            )
