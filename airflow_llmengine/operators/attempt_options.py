"""What a task says about its attempts, beside the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.hooks.llmengine import read_engine_args, read_table

if TYPE_CHECKING:
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.spec.table import Table
    from airflow_llmengine.storage.launch import IfDone

# The same words as storage's, which is too heavy to import where DAGs are parsed.
IF_DONE: tuple[str, ...] = get_args(Literal["reuse", "regenerate"])

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options as values; templated arguments arrive as text."""

    if_done: IfDone
    overwrite: bool
    max_error_rate: float | None
    engine_args: dict[str, Any]
    cache_path: str | None
    table: Table | None

    @classmethod
    def parse(
        cls, *, if_done: Any, overwrite: Any, max_error_rate: Any, engine_args: Any, cache_path: Any, table: Any
    ) -> TaskOptions:
        """Read the arguments.

        Raises:
            RequestRefusedError: One of them is not what it can be.
        """
        return cls(
            _if_done(if_done),
            _overwrite(overwrite),
            parse_max_error_rate(max_error_rate),
            read_engine_args(engine_args),
            parse_cache_path(cache_path),
            read_table(table),
        )


def _if_done(value: Any) -> IfDone:
    if value == "reuse":
        return "reuse"
    if value == "regenerate":
        return "regenerate"
    raise RequestRefusedError(f"if_done is {value!r}; it must be one of {', '.join(IF_DONE)}.")


def _overwrite(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    found = _BOOLEANS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise RequestRefusedError(f"overwrite is {value!r}; it must be true or false.")
    return found


def parse_max_error_rate(value: Any) -> float | None:
    """Read ``max_error_rate`` as an argument.

    Raises:
        RequestRefusedError: It is no number from 0 to 1.
    """
    if value is None or value in ("", "None"):
        return None
    try:
        rate = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        rate = float("nan")
    if not 0 <= rate <= 1:
        raise RequestRefusedError(f"max_error_rate is {value!r}; it must be a number from 0 to 1.")
    return rate


def parse_cache_path(value: Any, request: CreateBatchCompletionsV1Request | None = None) -> str | None:
    """Read ``cache_path`` as an argument.

    Args:
        value: It.
        request: The job that it is for, where that is known.

    Raises:
        RequestRefusedError: It can't be where answers are kept.
    """
    if value is None or value in ("", "None"):
        return None
    if not isinstance(value, str):
        raise RequestRefusedError(f"cache_path is a {type(value).__name__}; it must be a path or a URL.")
    from airflow_llmengine.spec.cache_path import cache_path_refusals

    refusals = cache_path_refusals(value, request)
    if refusals:
        raise RequestRefusedError("Answers can't be kept so:\n" + "\n".join(map(str, refusals)))
    return value
