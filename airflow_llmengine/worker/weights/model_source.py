"""What an engine loads: files of this machine, wherever they came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

READS_THE_DATE = re.compile(r"strftime_now|datetime")
"""In a chat template: the function that transformers gives to one for it, and Python's."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose files are all here."""

    directory: Path
    """The folder with its config, weights and tokenizer."""
    identity: str | None
    """Names the weights: a commit of the hub, or a digest; None if nothing does."""
    tokenizer: Path | None = None
    """Folder of the tokenizer that the job names, if it is not the model's own."""

    def names_code_elsewhere(self) -> bool:
        """Whether its config names code of another repository of the hub, as some with code of their own do."""
        folders = [self.directory, *([] if self.tokenizer is None else [self.tokenizer])]
        return any(
            "--" in reference
            for folder in folders
            for name in ("config.json", "tokenizer_config.json")
            for reference in _code_references(folder / name)
        )

    def template_reads_date(self) -> bool:
        """Whether its chat template writes the date into a chat, so that the same chat is another prompt tomorrow."""
        folders = [self.directory, *([] if self.tokenizer is None else [self.tokenizer])]
        return any(_names_the_date(path) for folder in folders for path in _template_files(folder))


class ModelFinder(Protocol):
    """Finds a job's model, and fetches it first if it is not here."""

    def __call__(self) -> ModelSource:
        """Find it. Blocks, for as long as it takes to fetch; a second call gives the same at once.

        Raises ``ModelNotFoundError``, ``ModelChangedError`` or ``StorageError``.
        """
        ...


def _template_files(folder: Path) -> Iterator[Path]:
    yield from (folder / "tokenizer_config.json", folder / "chat_template.json", folder / "processor_config.json")
    yield from folder.glob("chat_template*.jinja")
    yield from folder.glob("additional_chat_templates/*.jinja")


def _names_the_date(path: Path) -> bool:
    try:
        return READS_THE_DATE.search(path.read_text(errors="replace")) is not None
    except OSError:
        return False


def _code_references(config: Path) -> Iterator[str]:
    try:
        references: Any = json.loads(config.read_bytes()).get("auto_map")
    except (OSError, ValueError, AttributeError):
        return
    values = references.values() if isinstance(references, dict) else [references]
    for value in values:
        yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))
