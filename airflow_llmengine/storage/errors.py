"""What can go wrong with storage, as one tree.

::

    StorageError                  could not be read or written; unreachable, out of space, answered 5xx for too long
    +-- StorageNotFoundError      the file or folder is not there
    |   +-- StorageNoBucketError  nor the bucket in which it would be
    +-- StorageDeniedError        no permission, or no valid credentials
    |   +-- StorageExpiredError   temporary credentials that have expired
    +-- StorageMisdirectedError   the bucket is in another region, or behind another endpoint
    +-- StorageUnsupportedError   a store that can't do what a job needs, a URL that names no file, an unknown scheme,
    |                             or a package not installed
    +-- StorageChangedError       a file was replaced while it was being read
    +-- StorageDocumentError      a state document of a job can't be read as what it should be

Every message is one sentence with the URL, and never a credential, a query string or the content of a file. What the
library below said is kept as ``__cause__``.
"""

from __future__ import annotations


class StorageError(Exception):
    """A file could not be read or written. Transient failures have been retried before this is raised."""

    retry_helps = True
    """Whether the same may succeed when a whole attempt is simply made again."""


class StorageNotFoundError(StorageError):
    """There is no such file, folder or bucket."""

    retry_helps = False


class StorageNoBucketError(StorageNotFoundError):
    """There is no such bucket, or container: not even a first file can be there."""


class StorageDeniedError(StorageError):
    """The store or the file system refused: no permission, or no valid credentials."""

    retry_helps = False


class StorageExpiredError(StorageDeniedError):
    """The credentials were temporary, and have expired: a whole new attempt may be given new ones."""

    retry_helps = True


class StorageMisdirectedError(StorageError):
    """The store that was asked does not have the bucket: it is in another region, or behind another endpoint."""

    retry_helps = False


class StorageUnsupportedError(StorageError):
    """It can't be done there: no create-if-absent, no name of a file, an unknown scheme, a package not installed."""

    retry_helps = False


class StorageChangedError(StorageError):
    """The file was replaced while it was being read, so what was read so far can't be trusted."""


class StorageDocumentError(StorageError):
    """A state document of a job is there, but is not what it should be: half written, edited, or another program's."""

    retry_helps = False
