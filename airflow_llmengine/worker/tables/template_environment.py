"""The Jinja of a table's templates: sandboxed, strict, and with bounds on what one row may take.

A template is its author's, but how often it repeats something may follow from a cell. So there are bounds: on the
steps of its loops, and on the size of any text in it. What passes them fails on its row, and the job goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

from jinja2 import StrictUndefined, nodes, pass_context, pass_eval_context
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from typing_extensions import override

from airflow_llmengine.worker.readers.limits import MAX_RECORD_BYTES
from airflow_llmengine.worker.tables.cells import as_json, as_text

MOST_STEPS = 1_000_000
"""Of loops, macros and blocks, in the prompt of one row."""

_MOST_BITS = 100_000
"""Of a whole number; Python writes none of more than 14,000 as text."""

_OF_CHANCE_OR_SCREENS = ("random", "pprint", "urlize", "xmlattr")
"""Filters that would make two prompts of one row, or that are for web pages."""

_OF_THE_CLOCK = frozenset({"now", "today", "utcnow"})
"""Methods of dates that would make two prompts of one row."""

_WIDENING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
"""Methods of texts that make one as wide as is asked for."""


_STEP = "one step"
"""A filter that no template can name. Of what Jinja can call, filters take the least time."""

_steps = threading.local()
"""Of the template that this thread renders: how many are left."""


class TooMuchError(Exception):
    """A template passes a bound; the message, which begins with a verb, says which."""


class TooLargeError(TooMuchError):
    """A text in a template, or a prompt, is larger than a record may be."""

    def __init__(self) -> None:
        super().__init__(f"makes a text of more than {MAX_RECORD_BYTES} bytes, and a record may take no more")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What templates are compiled with and run in; each thread may run one at a time."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, finalize=as_text, keep_trailing_newline=True)
        for name in _OF_CHANCE_OR_SCREENS:
            del self.filters[name]
        del self.globals["lipsum"]
        # Jinja's own is for web pages: it escapes <, > and &.
        self.filters["tojson"] = as_json
        # Of these, Jinja's own write Python's True, and lists as Python has them.
        self.filters["string"] = lambda value: str(as_text(value))
        self.filters["join"] = _join
        self.filters["center"] = lambda value, width=80: FILTERS["center"](value, _narrow(width))
        self.filters["indent"] = lambda s, width=4, first=False, blank=False: FILTERS["indent"](
            s, _narrow(width), first, blank
        )
        self.filters[_STEP] = _take_step

    @staticmethod
    def begin() -> None:
        """Count the steps of this thread's next template from here."""
        _steps.left = MOST_STEPS

    @staticmethod
    @override
    def concat(pieces: Iterable[str]) -> str:
        return _concat(pieces)

    @override
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, date) and attr in _OF_THE_CLOCK) and super().is_safe_attribute(obj, attr, value)

    @override
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _require_small(operator, left, right)
        return super().call_binop(context, operator, left, right)

    @override
    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(getattr(obj, "__self__", None), str) and obj.__name__ in _WIDENING:
            for width in (*args, *kwargs.values()):
                _narrow(width)
        return super().call(context, obj, *args, **kwargs)


class _JoinedAsWritten(NodeTransformer):
    """Makes ``~`` write what ``{{ }}`` writes."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name for it
        """Called for each ``~``."""
        self.generic_visit(node)
        pieces = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(pieces, "join", [], [], None, None, lineno=node.lineno)


def bounded(tree: nodes.Template, environment: TemplateEnvironment) -> nodes.Template:
    """The same template with its bounds in it. ``tree`` is changed."""
    _JoinedAsWritten().visit(tree)
    repeated: list[Any] = list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)))
    for node in repeated:
        step = nodes.Filter(nodes.Const(None), _STEP, [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(step).set_lineno(node.lineno))
    # The nodes that are new must know which one they belong to.
    tree.set_environment(environment)
    return tree


@pass_context
def _take_step(_context: Context, _value: None) -> None:
    """Count one step. With the context, it is nothing that Jinja would do once when it compiles a template."""
    _steps.left -= 1
    if _steps.left < 0:
        raise TooMuchError(f"takes more than {MOST_STEPS} steps of its loops")


@pass_eval_context
def _join(context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    return _concat(_between(str(d), (str(as_text(item)) for item in value)))


def _between(separator: str, texts: Iterator[str]) -> Iterator[str]:
    for place, text in enumerate(texts):
        if place and separator:
            yield separator
        yield text


def _concat(pieces: Iterable[str]) -> str:
    kept = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_RECORD_BYTES:
            raise TooLargeError
        kept.append(piece)
    return "".join(kept)


def _narrow(width: Any) -> Any:
    if isinstance(width, int) and width > MAX_RECORD_BYTES:
        raise TooLargeError
    return width


def _require_small(operator: str, left: Any, right: Any) -> None:
    """Make sure that an operator makes nothing large of what is small."""
    if operator == "+":
        sized = isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple)
        size = len(left) + len(right) if sized else 0
    elif operator == "*" and isinstance(right, int) and isinstance(left, str | list | tuple):
        size = len(left) * right
    elif operator == "*" and isinstance(left, int) and isinstance(right, str | list | tuple):
        size = left * len(right)
    else:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MOST_BITS:
                raise TooMuchError(f"makes a whole number of more than {_MOST_BITS} bits")
        return
    if size > MAX_RECORD_BYTES:
        raise TooLargeError
