"""When failed records make a failed job: the one rule that worker, operator and command line share."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction


def exceeds_error_rate(failed: int, records: int, max_error_rate: float) -> bool:
    """Whether more than the share ``max_error_rate`` of all records failed.

    Exact: 29 of 100 are not more than 0.29, which they are in binary floating point.
    """
    # Asked for every record; an error of rounding is far smaller than one record in a million millions.
    if failed < max_error_rate * records * (1 - 1e-12):
        return False
    return failed > Fraction(repr(max_error_rate)) * records


def too_many_failures(failures: Mapping[str, int], records: int, max_error_rate: float | None) -> str | None:
    """Say in a clause why a job with these failures has failed; None if it has not.

    Args:
        failures: Failed records by error type.
        records: All records but those that were skipped.
        max_error_rate: The greatest share of failed records, from 0 to 1; None: a job fails only when every record did.
    """
    failed = sum(failures.values())
    if failed == 0:
        return None
    commonest_first = sorted(failures.items(), key=lambda item: -item[1])
    by_type = ", ".join(f"{count} {name}" for name, count in commonest_first)
    if failed == records:
        return f"all {failed} records failed ({by_type})"
    if max_error_rate is not None and exceeds_error_rate(failed, records, max_error_rate):
        return f"{failed} of {records} records failed ({by_type}), more than max_error_rate {max_error_rate:g} allows"
    return None
