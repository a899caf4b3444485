"""The documentation's pages, and what is in them: code, tables, and what their snippets stand for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import markdown  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = tuple(sorted(DOCS.glob("*.md")))
README = ROOT / "README.md"

SNIPPET = '--8<-- "'
"""How a page includes a file, or a section of one."""

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_CONNECTION = re.compile(r"AIRFLOW_CONN_\w+='(\{.*?\})'$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Code:
    """One piece of code of a page."""

    page: Path
    language: str
    source: str
    """As it stands in the page."""

    @property
    def text(self) -> str:
        """As it is read: files in the place of snippets."""
        return "\n".join(
            resolved(line) if line.strip().startswith(SNIPPET) else line for line in self.source.splitlines()
        )

    @property
    def is_included(self) -> bool:
        """Whether all of it comes from files."""
        return all(line.strip().startswith(SNIPPET) for line in self.source.splitlines() if line.strip())

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.source.strip().splitlines()[0][:60]}"


def code(page: Path, *languages: str) -> list[Code]:
    """The code of a page, in these languages, or in all."""
    found = [Code(page, fence["language"], fence["text"]) for fence in _FENCE.finditer(page.read_text())]
    return [each for each in found if not languages or each.language in languages]


def code_of_all(*languages: str) -> list[Code]:
    """The code of all pages and of the README, in these languages."""
    return [each for page in (*PAGES, README) for each in code(page, *languages)]


def connections(text: str) -> list[str]:
    """Connections that a shell command sets, as JSON."""
    return _CONNECTION.findall(text)


def commands(text: str) -> list[str]:
    """Commands of a shell text, each on a line of its own; what it prints or sets is none."""
    joined = text.replace("\\\n", " ")
    without = re.sub(r"'[^']*\n[^']*'", "''", joined)
    lines = [line for line in without.splitlines() if line.strip() and line[0] not in "# "]
    return [re.sub(r"^(?:\w+=\S+ )+", "", line.removeprefix("$ ")).strip() for line in lines]


def resolved(snippet: str) -> str:
    """What a line with a snippet stands for."""
    converter = markdown.Markdown(
        extensions=["pymdownx.snippets"],
        extension_configs={
            "pymdownx.snippets": {"base_path": [str(ROOT)], "check_paths": True, "dedent_subsections": True}
        },
    )
    return "\n".join(converter.preprocessors["snippet"].run([snippet.strip()]))


def first_column(page: Path, heading: str) -> list[str]:
    """What the table under a heading has in its first column, without the marks of code; names between commas each."""
    _, found, section = page.read_text().partition(f"\n## {heading}\n")
    assert found, f"{page.name} has no heading {heading}"
    table = section.partition("\n|---")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[1:]]
    return [name.strip().strip("`") for cell in cells for name in cell.split(", ")]
