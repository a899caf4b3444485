"""What a store's exception means: which typed error it becomes, in which words, and whether trying again may help.

Stores are told apart by what their exceptions carry, not by importing them: an HTTP status, an error code, an errno.
Their own texts are not repeated, since they may quote signed URLs and keys.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_llmengine.storage.errors import (
    StorageChangedError,
    StorageDeniedError,
    StorageError,
    StorageExpiredError,
    StorageMisdirectedError,
    StorageNoBucketError,
    StorageNotFoundError,
    StorageUnsupportedError,
)
from airflow_llmengine.storage.urls import endpoint_of, redact

_TRANSIENT_STATUS = (408, 409, 425, 429)
_TRANSIENT_CODES = ("SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "RequestLimitExceeded")
_TRANSIENT_ERRNO = (
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ESTALE,
)
_TRANSIENT_CLASSES = (
    "HTTPClientError",  # botocore: the connection broke off
    "ConnectionError",  # botocore's own, beside the built-in one: no connection, timeouts
    "ResponseParserError",  # botocore: a gateway's page instead of an answer
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",  # aiohttp: the answer broke off
    "IncompleteReadError",
    "IncompleteRead",
    "ServiceRequestError",  # azure
    "ServiceResponseError",  # azure
    "TransportError",  # google-auth
)
_NO_CREDENTIALS_CLASSES = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "DefaultCredentialsError",
    "RefreshError",
)
_WRONG_PLACE_CODES = (
    "PermanentRedirect",
    "TemporaryRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
)
_DENIED_CODES = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")
_EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_NO_BUCKET_CODES = {"NoSuchBucket": "bucket", "ContainerNotFound": "container"}
_DENIED_ERRNO = (errno.EACCES, errno.EPERM, errno.EROFS)
_STATUS_IN_WORDS = {"Forbidden: ": 403, "Bad Request: ": 400}
"""What gcsfs makes of two answers: plain exceptions, whose texts begin so."""
_NO_ENDPOINT = "Invalid endpoint: "
"""How botocore tells of an endpoint that is not one."""
_OF_OPTIONS = (KeyError, TypeError, ValueError)
"""What libraries raise for options that they can't use."""
_SAFE_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks a store, for messages: Airflow and a worker may have other credentials for it."""

    name: str
    """What the sentence begins with: ``Airflow``."""
    credentials: str
    """What is asked with: ``the credentials of the connection store``."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an exception of a store means."""

    error: type[StorageError]
    reason: str
    """What was wrong and what to do, as the end of a sentence."""
    transient: bool = False
    """Whether the same call may succeed when it is simply made again."""


def diagnose(exception: BaseException, caller: Caller | None = None) -> Failure:
    """What ``exception``, raised by a store, means."""
    chain = list(causes(exception))
    status = http_status(exception)
    code = error_code(exception)
    names = {base.__name__ for cause in chain for base in type(cause).__mro__}
    if "FileExpired" in names:
        return Failure(StorageChangedError, "it was replaced while it was being read")
    # Azure's is also what it answers with 403; without an answer no token could be had.
    without_token = "ClientAuthenticationError" in names and status is None
    if without_token or names.intersection(_NO_CREDENTIALS_CLASSES):
        among = "" if caller is None else f" among {caller.credentials}"
        return Failure(
            StorageDeniedError,
            f"no valid credentials were found{among}; give them in the connection or the environment",
        )
    if "ParamValidationError" in names:
        return Failure(StorageUnsupportedError, "the name of the bucket or the object is not a valid one")
    if type(exception) is ValueError and str(exception).startswith(_NO_ENDPOINT):
        return Failure(StorageMisdirectedError, "its endpoint_url is no URL; write for example https://host:9000")
    if status is not None or code is not None:
        return _by_answer(status, code, caller)
    if isinstance(exception, ImportError):
        return Failure(StorageUnsupportedError, "a package that its scheme needs is not installed")
    if isinstance(exception, NotImplementedError):
        return Failure(StorageUnsupportedError, "this store can't do that")
    if any(isinstance(cause, ConnectionError | TimeoutError) for cause in chain) or names.intersection(
        _TRANSIENT_CLASSES
    ):
        return Failure(
            StorageError,
            f"no answer from {_endpoint(chain)}; check the endpoint and the network",
            transient="SSLError" not in names,
        )
    return _by_errno(exception)


def translate(exception: BaseException, action: str, url: str, caller: Caller | None = None) -> StorageError:
    """The typed error for ``exception``, whose message tells who could not do what, where, why, and what to do."""
    if isinstance(exception, StorageError):
        return exception
    failure = diagnose(exception, caller)
    return failure.error(f"{cannot(caller)} {action} {redact(url)}: {failure.reason}.")


def translate_opening(exception: BaseException, url: str, caller: Caller | None = None) -> StorageError:
    """As ``translate``, for a store whose library could not even be set up: nothing has been asked of it yet."""
    failure = diagnose(exception, caller)
    if failure.error is StorageError and isinstance(exception, _OF_OPTIONS):
        return StorageDeniedError(
            f"{cannot(caller)} open {redact(url)}: the options or credentials that its library is given are not valid "
            f"ones ({type(exception).__name__}); correct them in the connection or the environment."
        )
    return translate(exception, "open", url, caller)


def cannot(caller: Caller | None) -> str:
    """How a message begins."""
    return "Cannot" if caller is None else f"{caller.name} cannot"


def is_transient(exception: BaseException) -> bool:
    """Whether the call that raised ``exception`` may succeed when it is simply made again."""
    return (
        isinstance(exception, Exception) and not isinstance(exception, StorageError) and diagnose(exception).transient
    )


def http_status(exception: BaseException) -> int | None:
    """The HTTP status that an object store answered, if that is what ``exception`` came from."""
    for cause in causes(exception):
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        for attribute in ("status_code", "status", "code"):
            status = getattr(cause, attribute, None)
            if isinstance(status, int) and 400 <= status <= 599:
                return status
        if type(cause) in (OSError, ValueError):
            for words, status in _STATUS_IN_WORDS.items():
                if str(cause).startswith(words):
                    return status
    return None


def error_code(exception: BaseException) -> str | None:
    """The error code that an object store answered (``NoSuchBucket``, ``SlowDown``), if it gave one."""
    for cause in causes(exception):
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            code = response.get("Error", {}).get("Code")
            if isinstance(code, str) and _SAFE_CODE.fullmatch(code):
                return code
        code = getattr(cause, "error_code", None)  # azure; of a string, and an enum's member besides
        if isinstance(code, str) and _SAFE_CODE.fullmatch(str.__str__(code)):
            return str.__str__(code)
    return None


def no_bucket(kind: str = "bucket") -> str:
    """What to say where files can't be because that does not exist which holds them all."""
    return f"the {kind} does not exist; create it or correct its name"


def _by_answer(status: int | None, code: str | None, caller: Caller | None) -> Failure:
    answer = " ".join(str(part) for part in ("the store answered", status, code) if part is not None)
    asked = answer if caller is None else f"{answer} to {caller.credentials}"
    if code in _NO_BUCKET_CODES:
        return Failure(StorageNoBucketError, no_bucket(_NO_BUCKET_CODES[code]))
    if status == 404:
        return Failure(StorageNotFoundError, "it does not exist; check its spelling")
    if code == "RequestTimeTooSkewed":
        return Failure(StorageDeniedError, f"{answer}; set the clock of the machine that asked")
    if code in _EXPIRED_CODES:
        return Failure(
            StorageExpiredError,
            f"{asked}: temporary credentials have expired; a retry is given new ones where they come from a role",
        )
    if status in (301, 307) or code in _WRONG_PLACE_CODES:
        return Failure(
            StorageMisdirectedError,
            f"{answer}, as where the bucket is in another region or behind another endpoint; correct region_name and "
            "endpoint_url",
        )
    if status in (401, 403) or code in _DENIED_CODES:
        return Failure(
            StorageDeniedError,
            f"{asked}; check the credentials and what they permit (where listing is not permitted, "
            f"what does not exist is answered so too)",
        )
    if status == 412:
        return Failure(StorageChangedError, "it was replaced while it was being read")
    if status == 501:
        return Failure(StorageUnsupportedError, f"{answer}; this store can't do that")
    if (status is not None and status >= 500) or status in _TRANSIENT_STATUS or code in _TRANSIENT_CODES:
        return Failure(StorageError, f"{answer}; try again later", transient=True)
    return Failure(StorageError, answer)


def _by_errno(exception: BaseException) -> Failure:
    number = exception.errno if isinstance(exception, OSError) else None
    if isinstance(exception, FileNotFoundError):
        return Failure(StorageNotFoundError, "it does not exist; check its spelling")
    if isinstance(exception, PermissionError) or number in _DENIED_ERRNO:
        detail = os.strerror(number).lower() if number is not None else "permission denied"
        return Failure(StorageDeniedError, f"{detail}; check who may read and write there")
    if isinstance(exception, IsADirectoryError):
        return Failure(StorageNotFoundError, "it is a folder, not a file")
    if number in (errno.ENAMETOOLONG, errno.ELOOP):
        return Failure(StorageUnsupportedError, os.strerror(number).lower())
    if isinstance(exception, NotADirectoryError | FileExistsError):
        return Failure(StorageNotFoundError, "a file stands where a folder should be")
    if number is not None and number in errno.errorcode:
        return Failure(StorageError, os.strerror(number).lower(), transient=number in _TRANSIENT_ERRNO)
    return Failure(StorageError, f"the store's library failed with {type(exception).__name__}")


def _endpoint(chain: list[BaseException]) -> str:
    for cause in chain:
        details = getattr(cause, "kwargs", None)
        if isinstance(details, Mapping) and isinstance(details.get("endpoint_url"), str):
            return endpoint_of(details["endpoint_url"])
    return "the store"


def causes(exception: BaseException) -> Iterator[BaseException]:
    """An exception, what caused it, what caused that, and so on."""
    cause: BaseException | None = exception
    for _ in range(10):  # a chain is never longer; this guards against one that bites its tail
        if cause is None:
            return
        yield cause
        cause = cause.__cause__
