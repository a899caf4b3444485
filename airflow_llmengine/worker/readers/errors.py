"""What ends a job because of its input as a whole. A fault of one record is data instead: ``RecordError``."""

from __future__ import annotations


class InputInvalidError(Exception):
    """The input as a whole can't be read: the message says which file, what is wrong with it and what to do.

    Trying again without a change does not help. Records that were read before it was raised stay valid.
    """


class InputCutError(InputInvalidError):
    """A file ends before the JSON document or the compressed stream in it does: it was not written to its end."""


class InputChangedError(Exception):
    """The input is no longer what it was when it was opened, so that its records can't make one output."""
