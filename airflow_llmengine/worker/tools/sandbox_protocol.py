"""What the worker and a sandbox's supervisor say to one another, over the supervisor's standard input and output."""

from __future__ import annotations

import struct

__all__ = [
    "ANSWER",
    "CAN_NOT_SEAL",
    "FAILED_RUN",
    "FORGET",
    "MAX_ERROR_BYTES",
    "REQUEST",
    "RUN",
    "SUCCEEDED_RUN",
]

REQUEST = struct.Struct("<cdI")
"""From the worker: `RUN`, the timeout in seconds and the code's length, then the code; or `FORGET` and two zeros."""

RUN, FORGET = b"R", b"F"

ANSWER = struct.Struct("<cI")
"""To the worker, after each run: how it went, and the length of what was printed, which follows."""

SUCCEEDED_RUN, FAILED_RUN, CAN_NOT_SEAL = b"s", b"f", b"u"

MAX_ERROR_BYTES = 4096
"""What the supervisor adds to what was printed is shorter, in bytes."""
