"""What the worker does beyond passing records on to its engine, each to be switched off to see what it brings alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest import mock

from airflow_llmengine.worker.answers.repeats import Repeats
from airflow_llmengine.worker.look_ahead import LookAhead


@contextmanager
def _without_prefix_order() -> Iterator[None]:
    with (
        mock.patch.object(LookAhead, "look_far", return_value=None),
        mock.patch.object(LookAhead, "arrange", return_value=None),
    ):
        yield


OPTIMISATIONS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "prefix order": _without_prefix_order,
    "repeats": lambda: mock.patch.object(Repeats, "key", return_value=None),
}
"""By name, how it is switched off in this process."""


@contextmanager
def switched_off(names: Sequence[str]) -> Iterator[None]:
    """Switch off the optimisations of these names."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(OPTIMISATIONS[name]())
        yield
