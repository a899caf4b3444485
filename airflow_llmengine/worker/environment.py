"""What a worker is given by its environment: in a pod there is no launcher that holds a pipe to it.

Each variable is removed once it was read, so that no process that is started later inherits it: an engine runs the
code of its model, and code that the model has written. What was set when the process began stays readable to
processes of the same user in ``/proc``; so credentials are better given in a file, or by the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmengine.storage.failures import Caller
from airflow_llmengine.storage.options import StorageOptions, laid_over

REQUEST_PREFIX = "env:"
"""What the request's place begins with when it is in an environment variable."""

STORAGE_OPTIONS_VARIABLE = "LLMENGINE_STORAGE_OPTIONS"
"""fsspec's options by protocol, as JSON."""

STORAGE_OPTIONS_FILE_VARIABLE = "LLMENGINE_STORAGE_OPTIONS_FILE"
"""Path of a JSON file of the same form; what it gives stands above the variable's options."""

FILE_LIMIT = 1 << 20
"""Most bytes of that file."""

_S3_CREDENTIALS = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
"""Of s3fs's options, the variables from which AWS's libraries take them."""

_OTHER_S3_CREDENTIALS = ("key", "secret", "token", "anon", "profile")
"""Given one of these, the variables are not asked."""

_AZURE_CREDENTIALS = {
    "connection_string": "AZURE_STORAGE_CONNECTION_STRING",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
}
"""Of adlfs's options, the variables from which it takes them."""

_AZURE_PROTOCOLS = ("az", "abfs", "abfss")

_HANDED_OVER = ("key", "aws_access_key_id", "token", *_AZURE_CREDENTIALS)

_FORM = 'a JSON object of options by protocol, such as {"s3": {"endpoint_url": "..."}}'


class EnvironmentInvalidError(Exception):
    """An environment variable does not hold what it should. The message names it, and quotes nothing of it."""


def take_request(name: str) -> bytes:
    """Give the request that an environment variable holds, and remove it.

    Raises:
        EnvironmentInvalidError: It is not set.
    """
    request = os.environ.pop(name, None)
    if request is None:
        raise EnvironmentInvalidError(
            f"the environment variable {name} is to hold the request, and is not set: set it, or give a file or a URL"
        )
    return request.encode("utf-8", "surrogateescape")


def storage_caller(launcher: Mapping[str, Mapping[str, Any]] | None = None) -> Caller:
    """Give what messages say of a launched worker that asks storage. To be asked before ``take_storage_options``.

    Args:
        launcher: What a launcher has sent. A worker in a pod is sent nothing: it finds what was handed to it in a file.
    """
    names = {name for options in (launcher or {}).values() for name in _all_names(options)}
    if os.environ.get(STORAGE_OPTIONS_FILE_VARIABLE) or names.intersection(_HANDED_OVER):
        return Caller("The worker", "the credentials of Airflow's storage connection, which were handed to it")
    return Caller("The worker", f"the credentials of its own {'pod' if launcher is None else 'machine'}")


def take_storage_options(launcher: Mapping[str, Mapping[str, Any]] | None = None) -> StorageOptions:
    """Give the options for storage, and remove from the environment what they were made of.

    Args:
        launcher: What a launcher has sent. It then decides alone, but for credentials that it leaves to the machine.

    Raises:
        EnvironmentInvalidError: A variable or the file holds something else than options.
    """
    text, path = (os.environ.pop(name, "") for name in (STORAGE_OPTIONS_VARIABLE, STORAGE_OPTIONS_FILE_VARIABLE))
    if launcher is not None:
        options = {protocol: dict(values) for protocol, values in launcher.items()}
    else:
        options = _parsed(text, STORAGE_OPTIONS_VARIABLE) if text else {}
        if path:
            options = laid_over(options, _read(Path(path)))
    return _with_credentials(options)


def _read(path: Path) -> StorageOptions:
    what = f"the file {path}, which {STORAGE_OPTIONS_FILE_VARIABLE} names,"
    try:
        with path.open("rb") as file:
            text = file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise EnvironmentInvalidError(f"{what} can't be read: {error.strerror}") from None
    if len(text) > FILE_LIMIT:
        raise EnvironmentInvalidError(f"{what} is larger than {FILE_LIMIT} bytes: it must be {_FORM}")
    return _parsed(text, what)


def _parsed(text: str | bytes, what: str) -> StorageOptions:
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        # Its message could quote a value.
        options = None
    if not isinstance(options, dict) or not all(isinstance(values, dict) for values in options.values()):
        raise EnvironmentInvalidError(f"{what} must be {_FORM}")
    return options


def _with_credentials(options: StorageOptions) -> StorageOptions:
    """Take stores' credentials out of the environment too, into the options unless those have some."""
    return _with_azure_credentials(_with_s3_credentials(options))


def _with_azure_credentials(options: StorageOptions) -> StorageOptions:
    found = {option: os.environ.pop(variable, "") for option, variable in _AZURE_CREDENTIALS.items()}
    given = {name for protocol in _AZURE_PROTOCOLS for name in options.get(protocol, {})}
    if given.intersection((*_AZURE_CREDENTIALS, "credential", "anon")):
        return options
    credentials = {option: value for option, value in found.items() if value}
    return laid_over({"az": credentials}, options) if credentials else options


def _with_s3_credentials(options: StorageOptions) -> StorageOptions:
    found = {option: os.environ.pop(variable, "") for option, variable in _S3_CREDENTIALS.items()}
    given = {name for protocol in ("s3", "s3a") for name in _all_names(options.get(protocol, {}))}
    if not found["key"] or given.intersection(_OTHER_S3_CREDENTIALS) or "aws_access_key_id" in given:
        return options
    return laid_over({"s3": {option: value for option, value in found.items() if value}}, options)


def _all_names(options: Mapping[str, Any]) -> list[str]:
    client = options.get("client_kwargs")
    return [*options, *(client if isinstance(client, dict) else ())]
