"""From an Airflow storage connection to the options that ``storage`` is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmengine.exceptions import ConnectionUnusableError
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.plain_credentials import without_credentials

AWS_CONNECTION_TYPE = "aws"


def storage_options(settings: ConnectionSettings) -> dict[str, dict[str, Any]]:
    """Options of fsspec by protocol, with the storage connection's credentials. Never to be logged.

    Raises:
        ConnectionUnusableError: The storage connection is not there, is none to a store, or has no credentials.
    """
    from airflow_llmengine.storage.options import laid_over

    options = {} if settings.storage_conn_id is None else connection_options(settings.storage_conn_id)
    return laid_over(options, settings.storage_options)


def connection_options(conn_id: str) -> dict[str, dict[str, Any]]:
    """Options of the one store that a connection leads to, by its protocol.

    Raises:
        ConnectionUnusableError: The connection is not there, is none to a store, or has no credentials.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    from airflow_llmengine.hooks.other_store_credentials import (
        AZURE_CONNECTION_TYPE,
        GOOGLE_CONNECTION_TYPE,
        azure_options,
        google_options,
    )

    types = (AWS_CONNECTION_TYPE, GOOGLE_CONNECTION_TYPE, AZURE_CONNECTION_TYPE)
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConnectionUnusableError(
            f"The storage connection {conn_id} is not defined: define it, of type aws, {types[1]} or {types[2]}."
        ) from error
    if connection.conn_type == AWS_CONNECTION_TYPE:
        return {"s3": _s3_options(conn_id)}
    if connection.conn_type == GOOGLE_CONNECTION_TYPE:
        return {"gs": google_options(connection)}
    if connection.conn_type == AZURE_CONNECTION_TYPE:
        return {"az": azure_options(connection)}
    raise ConnectionUnusableError(
        f"The storage connection {conn_id} is of type {connection.conn_type}; it must be of type aws, {types[1]} or "
        f"{types[2]}. For other stores, leave storage_conn_id empty and let the machine bring the credentials."
    )


def public_options(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Options by protocol that anybody may see: where a store is, and how it is spoken to."""
    public: dict[str, dict[str, Any]] = {}
    for protocol, values in options.items():
        kept = without_credentials(values, protocol)
        if "client_secret" in values:
            # Without their secret they stand in the way of what a pod has itself.
            kept = {name: value for name, value in kept.items() if name not in ("client_id", "tenant_id")}
        if kept:
            public[protocol] = kept
    return public


def s3_hook(conn_id: str) -> Any:
    """The Amazon provider's hook for an AWS connection."""
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    return S3Hook(aws_conn_id=conn_id)


def _s3_options(conn_id: str) -> dict[str, Any]:
    from botocore.exceptions import BotoCoreError, ClientError

    hook = s3_hook(conn_id)
    try:
        found = hook.get_session().get_credentials() is not None
        # Frozen: read at one moment, so that key and secret belong together; and masked in logs.
        credentials = hook.get_credentials() if found else None
    except (BotoCoreError, ClientError) as error:
        # What boto says here names roles and files, not keys.
        raise ConnectionUnusableError(f"The storage connection {conn_id} gives no credentials: {error}") from error
    if credentials is None:
        raise ConnectionUnusableError(
            f"The storage connection {conn_id} gives no credentials, and this machine has none: fill in its login and "
            "password, or a role."
        )
    connection = hook.conn_config
    client: dict[str, Any] = {}
    if hook.region_name:
        client["region_name"] = hook.region_name
    if hook.verify is not None:
        client["verify"] = hook.verify
    options: dict[str, Any] = {
        "key": credentials.access_key,
        "secret": credentials.secret_key,
        "token": credentials.token,
        "endpoint_url": connection.get_service_endpoint_url("s3"),
        "client_kwargs": client,
        "config_kwargs": connection.extra_config.get("config_kwargs"),
    }
    return {name: value for name, value in options.items() if value}
