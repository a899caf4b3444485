from __future__ import annotations

import pytest

from airflow_llmengine.spec.error_rate import exceeds_error_rate, too_many_failures


@pytest.mark.parametrize("percent", range(101))
def test_as_many_as_allowed_are_not_too_many(percent: int) -> None:
    """29 > 0.29 * 100 in binary floating point; here it is exact."""
    rate = float(f"0.{percent:02}") if percent < 100 else 1.0
    assert not exceeds_error_rate(percent, 100, rate)
    assert exceeds_error_rate(percent + 1, 100, rate) or percent == 100


@pytest.mark.parametrize(
    ("failures", "records", "rate", "said"),
    [
        ({}, 0, None, None),
        ({}, 10, 0.0, None),
        ({"a": 9}, 10, None, None),
        ({"a": 1}, 10, 0.0, "1 of 10 records failed (1 a), more than max_error_rate 0 allows"),
        ({"a": 1, "b": 2}, 10, 0.25, "3 of 10 records failed (2 b, 1 a), more than max_error_rate 0.25 allows"),
        ({"a": 3}, 3, 1.0, "all 3 records failed (3 a)"),
    ],
)
def test_too_many_failures(failures: dict[str, int], records: int, rate: float | None, said: str | None) -> None:
    assert too_many_failures(failures, records, rate) == said
