"""The worker's exit codes: a contract between the worker process and whatever launched it."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a worker process ended.

    The numbers are those of BSD's ``sysexits.h`` where one fits, so that they never meet Python's own 1, a shell's
    126 and 127, or 128 + signal.
    """

    DONE = 0
    """Nothing is left to do for this replica; if it is the only one, the output and its manifest stand."""

    BAD_REQUEST = 64
    """The request, or the input as a whole, can't be run. Trying again without a change does not help."""

    TOO_MANY_FAILED_RECORDS = 65
    """``max_error_rate`` is exceeded, or every record failed."""

    ENGINE_DIED = 69
    """The engine could not be started, or died. What was finished is kept; a retry goes on from there."""

    INTERNAL = 70
    """A defect of this program. What was finished is kept."""

    STORAGE_UNREACHABLE = 74
    """Input, output or job directory could not be read or written. What was committed before is kept."""

    PARTIAL = 75
    """Stopped by the deadline, a cancel or SIGTERM with the work saved; a retry goes on from there."""

    @property
    def retry_helps(self) -> bool:
        """Whether the same request may succeed when it is simply run again."""
        return self not in (ExitCode.BAD_REQUEST, ExitCode.TOO_MANY_FAILED_RECORDS)
