"""The request as an operator's arguments: what Airflow renders, and what it must not touch or show.

Every leaf of a request is a template, except under ``content`` and ``model_config.chat_template``: those are the
user's text, where braces mean nothing (a chat template *is* Jinja). They are wrapped, so that Airflow resolves the
XComArgs in them and leaves every letter alone; and what is under ``content`` is never shown, neither in the rendered
fields nor in the serialized form of the DAG.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.definitions._internal.mixins import ResolveMixin

from airflow_llmengine.exceptions import RequestRefusedError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_llmengine.spec.validation import Refusal

REQUEST_FIELDS = (
    "input_data_path",
    "output_data_path",
    "content",
    "model_config",
    "labels",
    "data_parallelism",
    "max_runtime_sec",
    "priority",
    "tool_config",
    "cpus",
    "memory",
    "gpus",
    "gpu_type",
    "storage",
    "nodes_per_worker",
)
"""The contract's fields, in the order in which a person reads them."""

TASK_ARGUMENTS = (
    "request",
    "llmengine_conn_id",
    "if_done",
    "overwrite",
    "max_error_rate",
    "engine_args",
    "cache_path",
    "table",
)
"""What a task says about its attempts, beside the fields."""

TEMPLATE_MARKS = ("{{", "{%", "{#")

_STAND_INS: Mapping[str, Any] = {
    "input_data_path": "input.jsonl",
    "output_data_path": "output.jsonl",
    "model_config": {"model": "model"},
}
"""For fields that a request must have, where it comes later."""

_STAND_IN_TABLE: Mapping[str, Any] = {"prompt": "text", "parameters": {"max_tokens": 1}, "output_format": "jsonl"}
"""For a table of which nothing is known yet but that there is one."""


class Verbatim(ResolveMixin):
    """A value that Airflow does not render. XComArgs in it are resolved.

    Args:
        value: The value.
        private: Whether it may not be shown.
    """

    def __init__(self, value: Any, *, private: bool) -> None:
        self.value = value
        self.private = private

    def iter_references(self) -> Iterable[tuple[Any, str]]:
        """The XComs in it, which make their tasks upstream of this one."""
        return XComArg.iter_xcom_references(self.value)

    def resolve(self, context: Context) -> Verbatim:
        """The same with its XComArgs resolved. It stays wrapped: nothing must render it later either."""
        return Verbatim(_resolved(self.value, context), private=self.private)

    def serialize(self) -> Any:
        """What Airflow shows of it."""
        return str(self) if self.private else self.value

    def __str__(self) -> str:
        if not self.private:
            return str(self.value)
        prompts = self.value.get("prompts") if isinstance(self.value, Mapping) else None
        return f"<{len(prompts)} prompts, not shown>" if isinstance(prompts, list | tuple) else "<not shown>"

    def __repr__(self) -> str:
        return f"Verbatim({'<not shown>' if self.private else repr(self.value)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verbatim) and (self.value, self.private) == (other.value, other.private)

    __hash__ = None  # type: ignore[assignment]


class Copies:
    """Parts of a task's arguments, and what each is a copy of.

    In no attribute that can be listed: a lineage of all that a task holds would show the user's text.
    """

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []

    def note(self, copy: Any, original: Any) -> None:
        """Note what a part is a copy of."""
        self._pairs.append((copy, original))

    def is_of_one(self, part: Any, ids: Container[int]) -> bool:
        """Whether a part is the copy of something that has one of these ``id``s."""
        return any(copy is part and id(original) in ids for copy, original in self._pairs)


class GatheredRequest(dict[str, Any]):
    """Fields that ``partial()`` was given: a mapped task lays its own over them."""


def refuse_misspelt(operator: type[BaseOperator], names: Iterable[str]) -> None:
    """Refuse arguments that nobody takes and that are nearly a field's name; Airflow's own complaint names no other.

    Args:
        operator: The operator that they are meant for.
        names: The arguments.

    Raises:
        RequestRefusedError: One of them is misspelt.
    """
    unknown = sorted(set(names) - known_arguments(operator))
    for name in unknown:
        near = difflib.get_close_matches(name, (*REQUEST_FIELDS, *TASK_ARGUMENTS), 1, cutoff=0.8)
        if near:
            raise RequestRefusedError(f"{name}: unknown argument; did you mean {near[0]}?")


@functools.cache
def known_arguments(operator: type[BaseOperator]) -> frozenset[str]:
    """What the constructors of an operator and of those behind it take by name.

    Found out once for a class: it takes longer than all else that is done when an operator is made.
    """
    return frozenset(
        name
        for base in operator.__mro__
        if "__init__" in vars(base)
        for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    )


def pool_slots(arguments: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, int]:
    """How many slots of its pool a worker takes: one for each of its GPUs, on all of its nodes.

    Args:
        arguments: Of the operator, its ``default_args`` among them; its own ``pool_slots`` goes before this.
        request: The request's fields, or the request as ``request``.

    Returns:
        The argument, or nothing where there is no pool, or ``gpus`` is known only when the task runs.
    """
    defaults = arguments.get("default_args") or {}
    arguments = {**defaults, **arguments}
    whole = request.get("request", defaults.get("request"))
    # One by one they are none where another task gives the whole.
    fields = {**defaults, **request, **whole} if isinstance(whole, Mapping) else {**defaults, **request}
    gpus, nodes = _number(fields.get("gpus")), _number(fields.get("nodes_per_worker"))
    if arguments.get("pool") is None or arguments.get("pool_slots") is not None or gpus is None:
        return {}
    slots = gpus * max(1, nodes or 1)
    return {"pool_slots": slots} if slots > 1 else {}


def _number(value: Any) -> int | None:
    """A whole number, or its text; None for anything else, such as a template."""
    value = unwrap(value)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def has_template(value: Any) -> bool:
    """Whether a leaf is only known when the task runs."""
    return isinstance(value, ResolveMixin) or (isinstance(value, str) and any(mark in value for mark in TEMPLATE_MARKS))


def protect(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request with the user's text wrapped. What is wrapped already stays as it is."""
    protected = dict(request)
    content = protected.get("content")
    if content is not None and not isinstance(content, Verbatim):
        protected["content"] = Verbatim(content, private=True)
    model_config = protected.get("model_config")
    if isinstance(model_config, Mapping):
        template = model_config.get("chat_template")
        if template is not None and not isinstance(template, Verbatim):
            protected["model_config"] = {**model_config, "chat_template": Verbatim(template, private=False)}
    return protected


def unwrap(value: Any) -> Any:
    """The value without wrappers: what goes to the worker."""
    if isinstance(value, Verbatim):
        return value.value
    if isinstance(value, Mapping):
        return {name: unwrap(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [unwrap(item) for item in value]
    return value


def refuse_early(request: Mapping[str, Any], table: Any = None, *, is_whole: bool = True) -> None:
    """Check a request when the DAG is parsed, as far as it is known by then.

    What is a template or an XComArg is only known when the task runs, and is checked there with all the rest.

    Args:
        request: The request.
        table: The argument, if the job has a table.
        is_whole: Whether nothing comes to the request when the task runs.

    Raises:
        RequestRefusedError: What is known already can't be run.
    """
    from airflow_llmengine.spec.check import check
    from airflow_llmengine.spec.table import parse_table
    from airflow_llmengine.spec.validation import RequestInvalidError, parse_request

    later = {*_known_later(request, ""), *_known_later(table, "table")}
    if not is_whole:
        given = {*request, "input_data_path"} if "content" in request else set(request)
        missing = _STAND_INS.keys() - given
        request = {**request, **{name: _STAND_INS[name] for name in missing}}
        later.update(missing)
    refusals: list[Refusal] = []
    known_table = None
    if table is not None:
        try:
            known_table = parse_table(_STAND_IN_TABLE if "table" in later else placeholders(unwrap(table)))
        except RequestInvalidError as error:
            refusals += [refusal for refusal in error.refusals if not _concerns(refusal, later)]
            known_table = parse_table(_STAND_IN_TABLE)
            later.add("table")
    try:
        found = check(parse_request(placeholders(unwrap(request))), known_table)
    except RequestInvalidError as error:
        found = error.refusals
    refusals += [refusal for refusal in found if not _concerns(refusal, later)]
    if refusals:
        raise RequestRefusedError("The request can't be run:\n" + "\n".join(map(str, refusals)))


def _resolved(value: Any, context: Context) -> Any:
    if isinstance(value, XComArg):
        return value.resolve(context)
    if isinstance(value, Mapping):
        return {name: _resolved(item, context) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, context) for item in value]
    if isinstance(value, tuple):
        return tuple(_resolved(item, context) for item in value)
    return value


def _known_later(value: Any, path: str, *, verbatim: bool = False) -> Iterator[str]:
    """Paths of what is a template or an XComArg, in the way that refusals name them."""
    if isinstance(value, Verbatim):
        yield from _known_later(value.value, path, verbatim=True)
    elif isinstance(value, ResolveMixin):
        yield path
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _known_later(item, f"{path}.{name}" if path else str(name), verbatim=verbatim)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _known_later(item, f"{path}[{index}]", verbatim=verbatim)
    elif not verbatim and has_template(value):
        yield path


def placeholders(value: Any) -> Any:
    """The value with something in the place of XComArgs that no field takes for itself."""
    if isinstance(value, ResolveMixin):
        return "{{ }}"
    if isinstance(value, Mapping):
        return {name: placeholders(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [placeholders(item) for item in value]
    return value


def _concerns(refusal: Refusal, later: set[str]) -> bool:
    """Whether a refusal is about a value that is not known yet: the very one, or one inside or around it."""
    path = refusal.path
    if not path:
        # About the records that would be made of a table's rows for the model.
        return any(other.startswith(("table", "model_config")) for other in later)
    return any(
        path == other or path.startswith((f"{other}.", f"{other}[")) or other.startswith((f"{path}.", f"{path}["))
        for other in later
    )
