"""What the worker does beyond passing records on to its engine, each to be switched off to see what it brings alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest import mock

from airflow_llmengine.worker.answers.repeats import Repeats

OPTIMISATIONS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
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
