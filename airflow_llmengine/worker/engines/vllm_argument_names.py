"""Which arguments the installed vLLM has, by their Python names.

They are read from its source: importing it takes half a minute, and sets it up by an environment that is only known
once the model is here. What is refused by these names is refused before anything is fetched.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from airflow_llmengine.spec.engine_args import NOT_TO_BE_SET, SERVING_ARGUMENTS
from airflow_llmengine.spec.engine_fields import ENGINE_FIELDS

ENGINE_ARGUMENTS = ("engine/arg_utils.py", frozenset({"EngineArgs", "AsyncEngineArgs"}))
"""Where the engine's arguments are in vLLM's package, as the fields of these classes."""


@cache
def engine_argument_names() -> frozenset[str]:
    """The fields of the installed vLLM's ``AsyncEngineArgs``; none where they can't be read.

    Its own parser judges them then, once the model is here.
    """
    found = importlib.util.find_spec("vllm")
    path, classes = ENGINE_ARGUMENTS
    for folder in (found.submodule_search_locations if found else None) or ():
        try:
            tree = ast.parse((Path(folder) / path).read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        return frozenset(
            statement.target.id
            for definition in tree.body
            if isinstance(definition, ast.ClassDef) and definition.name in classes
            for statement in definition.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            if not statement.target.id.startswith("_")
        )
    return frozenset()


def unknown_arguments(names: Iterable[str], version: str) -> list[str]:
    """A clause for each name that the installed vLLM has no argument of, with the nearest that may be meant.

    Args:
        names: Of ``engine_args``.
        version: The installed vLLM's.
    """
    known = engine_argument_names()
    if not known:
        return []
    known |= SERVING_ARGUMENTS
    # What would be refused in turn is no help.
    taken = {name for field in ENGINE_FIELDS for name in (field.name, field.argument)}
    offered = sorted(known - NOT_TO_BE_SET.keys() - taken)
    clauses = []
    for name in names:
        if name not in known:
            near = get_close_matches(name, offered, 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else "; leave it out"
            clauses.append(f"engine_args.{name}: vLLM {version} has no such argument{hint}")
    return clauses
