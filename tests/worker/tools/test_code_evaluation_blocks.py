"""Which block of code is run, and how what it printed is put in."""

from __future__ import annotations

import pytest

from airflow_llmengine.worker.tools.code_blocks import CodeBlock, last_block, shown_output
from tests.worker.tools.authors import block


def found(text: str) -> tuple[str, str] | None:
    """The code that is run, and what follows its closing fence."""
    one = last_block(text)
    return None if one is None else (one.code, text[one.end :])


@pytest.mark.parametrize(
    ("text", "code", "imagined"),
    [
        pytest.param(block("print(1)", "2"), "print(1)", "2\n>>>\n", id="one"),
        pytest.param("So ```python\nx\n```\n>>>\n", "x", ">>>\n", id="within a line, and nothing made up"),
        pytest.param("```python\nx\n```\n>>>\n", "x", ">>>\n", id="the fence's line break is the marker's"),
        pytest.param("```python\n```\n>>>\n", "", ">>>\n", id="no code at all"),
        pytest.param("```python\n\n```\n>>>\n", "", ">>>\n", id="an empty line of code"),
        pytest.param("```python\nx\n\n\n```\n1\n>>>\n", "x\n\n", "1\n>>>\n", id="empty lines at the end of the code"),
        pytest.param("```python\na\n```\n1\n```python\nb\n```\n2\n>>>\n", "b", "2\n>>>\n", id="the last of two"),
        pytest.param("```python\na\n```\n1\n```python\nb\n>>>\n", "a", "1\n```python\nb\n>>>\n", id="one is not ended"),
        pytest.param("```python\na\n```python\nb\n```\n1\n>>>\n", "b", "1\n>>>\n", id="begun anew"),
        pytest.param("```python\na\n```\n```\n1\n```\n>>>\n", "a", "```\n1\n```\n>>>\n", id="an output in fences"),
        pytest.param("```python\ns = '''\n````\n```x\n'''\n```\n>>>\n", "s = '''\n````\n```x\n'''", ">>>\n", id="near"),
        pytest.param("```python\na\r\nb\n```\n>>>\n", "a\r\nb", ">>>\n", id="carriage returns in the code"),
    ],
)
def test_the_last_whole_block_is_run(text: str, code: str, imagined: str) -> None:
    assert found(text) == (code, imagined)


@pytest.mark.parametrize(
    "text",
    [
        "no code\n>>>\n",
        "```python\nnot ended\n>>>\n",
        "```\nx\n```\n>>>\n",
        "```python x\n```\n>>>\n",
        "```Python\nx\n```\n>>>\n",
        "```python\r\nx\r\n```\r\n\n>>>\n",
        "```python\nx```\n>>>\n",
        "```python\nx\n``` \n>>>\n",
        "x\n```\n```python\n>>>\n",
    ],
)
def test_what_is_no_whole_block_of_the_form_is_not_run(text: str) -> None:
    assert found(text) is None


def test_a_block_knows_where_it_ends() -> None:
    assert last_block("ab```python\nx\n```\n1") == CodeBlock(code="x", end=18)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("42\n", "42\n>>>\n"),
        ("42", "42\n>>>\n"),
        ("", "\n>>>\n"),
        ("\n", "\n>>>\n"),
        ("a\n\n", "a\n\n>>>\n"),
        ("a\r\n", "a\r\n>>>\n"),
        (" a \nb\n", " a \nb\n>>>\n"),
    ],
)
def test_the_marker_stands_on_the_line_after_the_last_one_printed(printed: str, shown: str) -> None:
    assert shown_output(printed) == shown
