"""The readers' limits. They are constants and not settings: what one reader accepts, every later one accepts too."""

from __future__ import annotations

from typing import Final

MAX_RECORD_BYTES: Final = 64 * 2**20
"""Most bytes of one record in the input; a longer one is skipped and becomes a row error."""

MAX_NESTING: Final = 256
"""Deepest nesting of arrays and objects in a record.

Far above any request, and far below the depth at which Python's parser gives up, which differs from version to version
and would make one input two jobs.
"""

MAX_CONTAINERS: Final = 2**20
"""Most arrays and objects in a record. Python takes up to a hundred bytes for one that takes three in the input."""

MAX_FIELDS: Final = 1000
"""Most fields of a record, known or not: each unknown one is a fault, which takes more memory than the field."""

MAX_ENTRIES: Final = 2**18
"""Most entries of an object in a record. Some hold an entry for each token of a vocabulary."""

HEAD_BYTES: Final = 2**20
"""How much of a file is looked at to find out what it is."""

BLOCK_BYTES: Final = 256 * 2**10
"""How much is asked of a file at a time."""
