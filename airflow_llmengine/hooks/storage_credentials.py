"""From an Airflow storage connection to the options that ``storage`` is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmengine.exceptions import ConnectionUnusableError
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.plain_credentials import without_credentials

STORAGE_CONNECTION_TYPE = "aws"


def storage_options(settings: ConnectionSettings) -> dict[str, dict[str, Any]]:
    """Options of fsspec by protocol, with the storage connection's credentials. Never to be logged.

    Raises:
        ConnectionUnusableError: The storage connection is not there, is not an AWS connection, or has no credentials.
    """
    from airflow_llmengine.storage.options import laid_over

    options = {} if settings.storage_conn_id is None else {"s3": _s3_options(settings.storage_conn_id)}
    return laid_over(options, settings.storage_options)


def public_options(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Options by protocol that anybody may see: where a store is, and how it is spoken to."""
    public = ((protocol, without_credentials(values, protocol)) for protocol, values in options.items())
    return {protocol: values for protocol, values in public if values}


def s3_hook(conn_id: str) -> Any:
    """The Amazon provider's hook for the connection.

    Raises:
        ConnectionUnusableError: There is no such connection, or it is not an AWS connection.
    """
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConnectionUnusableError(
            f"The storage connection {conn_id} is not defined: define it, of type aws."
        ) from error
    if connection.conn_type != STORAGE_CONNECTION_TYPE:
        raise ConnectionUnusableError(
            f"The storage connection {conn_id} is of type {connection.conn_type}; it must be of type aws. For other "
            "stores, leave storage_conn_id empty and let the machine bring the credentials."
        )
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
