"""Files on the local disk, closed with the test that opened them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from airflow_llmengine.worker.answers.local_file import LocalFile


@pytest.fixture
def open_file() -> Iterator[Callable[..., LocalFile]]:
    with ExitStack() as stack:

        def opened(*arguments: Any, **named: Any) -> LocalFile:
            return stack.enter_context(closing(LocalFile(*arguments, **named)))

        yield opened
