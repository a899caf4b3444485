"""Credentials among what anybody may see: by the names of options and variables, and in the URLs that they hold.

A name can only make suspicious. It is asked for what stores' libraries and their services call their credentials; what
says where one is (``key_path``), which one it is, or how it is used, is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|passcode|pwd|token|jwt|bearer|credential|authorization|cookie|sharedaccess|"
    r"conn(ection)?str(ing)?|(access|account|api|private|storage|shared|customer|encryption|signing|master)key|"
    r"^(key|pkey|pass|auth|sas)$"
)
"""In the name of an option or header, in lower case and without what separates its words."""

_ABOUT_A_SECRET = re.compile(
    r"(path|file|filename|directory|url|uri|endpoint|name|type|version|algorithm|md5|timeout|lifetime|seconds)$"
)
"""At the end of such a name."""

_SECRET_VARIABLE = re.compile(
    r"(SECRET|PASSWORD|PASSPHRASE|TOKEN)$|"
    r"(^|_)(PASSWD|PASSCODE|PASS|JWT|SAS|CREDENTIAL|AUTHORIZATION|COOKIE|CONN(ECTION)?_?STR(ING)?|ACCESS_?KEY_ID|"
    r"(SECRET|ACCESS|ACCOUNT|API|PRIVATE|STORAGE|SHARED|CUSTOMER|ENCRYPTION|SIGNING|MASTER)_?KEY)$|"
    r"_PWD$|^AIRFLOW_CONN_",
    re.IGNORECASE,
)
"""In the name of an environment variable: at its end, as much else is named after tokens."""

_WAYS_TO_SIGN_IN = ("anon", "cache", "cloud", "google_default")
"""What gcsfs takes as ``token`` for a way to come by one."""

_USER_INFO = re.compile(r"(?<=://)[^/?#\s]+@")
_PROXY_USER_INFO = re.compile(r"[^/?#\s@:]+:[^/?#\s]*@")
"""At the start of a proxy's address, which needs no scheme."""
_QUERY_NAME = re.compile(r"[?&]([^=&\s]+)=")
_SCHEME_AND_SECRET = re.compile(r"(basic|bearer)\s+\S", re.IGNORECASE)
"""What a header for authorization starts with."""


def credentials_in(options: Any, path: str = "") -> Iterator[str]:
    """Where options hold something that looks like a credential.

    Args:
        options: An object or a list of them, or a value.
        path: Where it is.

    Yields:
        Paths, for example ``s3.client_kwargs.aws_secret_access_key``.
    """
    for step, value in _members(options):
        here = f"{path}.{step}" if path else step
        if _is_credential(step, value, here):
            yield here
        else:
            yield from credentials_in(value, here)


def without_credentials(options: Any, path: str = "") -> Any:
    """The same without what ``credentials_in`` finds. Of URLs only the user is left out.

    Args:
        options: An object or a list of them, or a value.
        path: Where it is.
    """
    if isinstance(options, str):
        return _USER_INFO.sub("", options)
    if not isinstance(options, Mapping | list | tuple):
        return options
    public = {}
    for step, value in _members(options):
        here = f"{path}.{step}" if path else step
        value = _USER_INFO.sub("", value) if isinstance(value, str) else value  # noqa: PLW2901 - for what follows
        if not _is_credential(step, value, here):
            public[step] = without_credentials(value, here)
    return public if isinstance(options, Mapping) else list(public.values())


def credential_variables(environment: Mapping[str, str]) -> list[str]:
    """Names of environment variables that look like credentials, or hold a URL with some."""
    return [
        name for name, value in environment.items() if _SECRET_VARIABLE.search(name) or _has_credentials(value, name)
    ]


def _members(options: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(options, Mapping):
        yield from ((str(name), value) for name, value in options.items())
    elif isinstance(options, list | tuple):
        yield from ((str(index), value) for index, value in enumerate(options))


def _is_credential(name: str, value: Any, path: str) -> bool:
    if value in (None, True, False, "", [], {}):
        # Whether there is one is no secret.
        return False
    if name == "token" and value in _WAYS_TO_SIGN_IN:
        return False
    return _is_secret_name(name) or (isinstance(value, str) and _has_credentials(value, path))


def _is_secret_name(name: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return bool(_SECRET_NAME.search(plain)) and not _ABOUT_A_SECRET.search(plain)


def _has_credentials(text: str, path: str) -> bool:
    if _USER_INFO.search(text) or _SCHEME_AND_SECRET.match(text):
        return True
    if "prox" in path.lower() and _PROXY_USER_INFO.match(text):
        return True
    signed = (name.lower() for name in _QUERY_NAME.findall(text) if "://" in text)
    return any(name.endswith(("sig", "signature")) or _is_secret_name(name) for name in signed)
