"""URLs of files: one canonical spelling for each place, and a form that is safe to show."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_llmengine.storage.errors import StorageUnsupportedError

LOCAL = "file"
MEMORY = "memory"
S3 = "s3"
GCS = "gs"
AZURE = "az"

_ALIASES = {
    "local": LOCAL,
    "s3a": S3,
    "s3n": S3,
    "gcs": GCS,
    "abfs": AZURE,
    "abfss": AZURE,
}
_AZURE_SCHEMES = (AZURE, "abfs", "abfss")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*::")
_USER_INFO = re.compile(r"://[^/@]*@")
_WEB = re.compile(r"https?://", re.IGNORECASE)
_QUERY = re.compile(r"\?[^/?]*=.*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """A URL in canonical form."""

    protocol: str
    """``file``, ``memory``, ``s3``, ``gs``, ``az`` or another scheme of fsspec."""
    prefix: str
    """What stands before ``path`` in the canonical URL: empty for local files, else ``<scheme>://``."""
    path: str
    """Absolute path for local files, ``bucket/key`` for object stores. Never ends with a slash, except ``/`` itself."""

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.prefix + self.path

    @property
    def names_file(self) -> bool:
        """Whether a file can be there: not at the root of a file system, nor where only a bucket is named."""
        if self.protocol in (LOCAL, MEMORY):
            return self.path.strip("/") != ""
        return "/" in self.path

    @property
    def store(self) -> str:
        """The part of the URL that says which store it is: ``s3://bucket``, ``memory://``; empty for local files."""
        return "" if not self.prefix else self.prefix + ("" if self.protocol == MEMORY else self.path.partition("/")[0])


def parse_url(url: str) -> ParsedUrl:
    """Parse a URL or a local path; two spellings of one place give the same result.

    A relative local path is taken from the current directory. ``StorageUnsupportedError`` for what no store could be
    found for.
    """
    if not url or "\0" in url:
        raise StorageUnsupportedError("A URL that is empty or holds a null byte names no place; give a URL or a path.")
    match = _SCHEME.match(url)
    if match is None:
        if "://" in url and _CHAIN.match(url):
            raise StorageUnsupportedError(f"{redact(url)} is a chained URL; give the URL of the file itself.")
        return _local(url)
    scheme = match.group(1).lower()
    rest = url[match.end() :]
    protocol = _ALIASES.get(scheme, scheme)
    if protocol == LOCAL:
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise StorageUnsupportedError(
                f"{redact(url)} names a host; write a local file as file:///path or as a plain path."
            )
        return _local("/" + path)
    if protocol == MEMORY:
        return ParsedUrl(MEMORY, "memory://", rest.strip("/"))
    if "::" in rest and protocol not in (MEMORY, S3):
        # fsspec would take what follows for another store, and this one for a way to look into it.
        raise StorageUnsupportedError(f"{redact(url)} is a chained URL; give the URL of the file itself.")
    if protocol == S3 and "?versionId=" in rest:
        raise StorageUnsupportedError(
            f"{redact(url)} names one version of an object, which a job can't hold on to; give the plain object URL."
        )
    prefix = f"{scheme}://" if scheme in _AZURE_SCHEMES else f"{protocol}://"
    return ParsedUrl(protocol, prefix, rest.rstrip("/"))


def _local(path: str) -> ParsedUrl:
    return ParsedUrl(LOCAL, "", os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 - text in, text out


def redact(url: str) -> str:
    """The URL as it may be shown: without user information and query string.

    A question mark that no ``=`` follows is a glob's, and stays.
    """
    if "://" not in url:
        return url
    if not url.startswith(tuple(f"{scheme}://" for scheme in _AZURE_SCHEMES)):  # container@account is a place there
        url = _USER_INFO.sub("://", url)
    if _WEB.match(url):
        return url.partition("?")[0]
    return _QUERY.sub("", url)


def endpoint_of(url: str) -> str:
    """Scheme, host and port of a service's URL, for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if host else "the endpoint"
