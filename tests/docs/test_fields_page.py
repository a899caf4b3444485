"""docs/fields.md says of every field of the contract what it means, and what becomes of it."""

from __future__ import annotations

import os

import pytest

from tests.docs.fields_page import JOB, JSON_SCHEMA, LINE, MESSAGE, PAGE, SECTIONS, TABLE, TOOL, page, wire_fields


def test_the_page_is_made_of_the_code() -> None:
    made = page()
    if os.environ.get("WRITE_DOCS"):
        PAGE.write_text(made)
    assert made == PAGE.read_text(), "the page is made anew by `make docs`"


@pytest.mark.parametrize(
    ("heading", "sentences"),
    [
        ("The job", JOB),
        ("tool_config", TOOL),
        ("json_schema", JSON_SCHEMA),
        ("table", TABLE),
        ("Messages of a table", MESSAGE),
        ("Lines of an OpenAI batch file", LINE),
    ],
)
def test_nothing_is_said_of_a_field_that_there_is_not(heading: str, sentences: dict[str, str]) -> None:
    (section,) = (each for each in SECTIONS if each.heading == heading)
    assert sorted(sentences) == sorted(wire_fields(section))
