"""An input file that must stay what it was when the job looked at it.

The input is read many times: by each replica, and again for chunks that are helped with. A file that is replaced, and
put back before the job's last look, would leave chunks of another input among those of this one.
"""

from __future__ import annotations

from airflow_llmengine.storage.errors import StorageChangedError, StorageNotFoundError
from airflow_llmengine.storage.filesystem import FileEntry, Location, Storage
from airflow_llmengine.storage.inputs import input_identity, list_input
from airflow_llmengine.worker.readers.errors import InputChangedError


class UnchangedFile:
    """A file opened for reading, of which nothing is handed out once it is another one than was listed.

    On object stores its tag is compared when it is opened; after that the store itself refuses to go on with another
    object. Local files can be written to while they are read, and are looked at after each read.

    Args:
        location: Where it is.
        entry: What it was when it was listed.

    Raises:
        InputChangedError: It is another one now.
        StorageError: It can't be opened or read.
    """

    def __init__(self, location: Location, entry: FileEntry) -> None:
        self._location = location
        self._entry = entry
        self._file = location.open_read()
        try:
            self._require_same()
        except BaseException:
            self._file.close()
            raise

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; nothing only at the end."""
        data = self._file.read(size)
        if self._entry.stamp is not None:
            self._require_same()
        return data

    def read_at(self, position: int, size: int) -> bytes:
        """The bytes from a place on; less than ``size`` only at the end."""
        self._file.seek(position)
        return self.read(size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _require_same(self) -> None:
        now = self._location.info()
        if now is None or (now.size, now.identity, now.stamp) != (
            self._entry.size,
            self._entry.identity,
            self._entry.stamp,
        ):
            raise changed(self._location)


def require_unchanged(storage: Storage, url: str, identity: str) -> None:
    """Make sure that the files of an input are still those that they were when it was opened.

    Local files are read once more for it, since nothing less proves it.

    Args:
        storage: Where they are.
        url: What names them: a file, a folder or a glob.
        identity: What ``input_identity`` gave then.

    Raises:
        InputChangedError: They are not.
        StorageError: It can't be told.
    """
    try:
        now = input_identity(storage, list_input(storage, url))
    except (StorageNotFoundError, StorageChangedError) as error:
        raise InputChangedError(f"The input was changed while the job read it: {error}") from error
    if now != identity:
        raise changed(storage.location(url))


def changed(location: Location) -> InputChangedError:
    """The error for an input that is another one now."""
    return InputChangedError(
        f"The input {location} was changed while the job read it, so that the results would be of two inputs: run the "
        "job again on files that stay as they are."
    )
