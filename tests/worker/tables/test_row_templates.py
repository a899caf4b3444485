"""Templates over a row's cells: what they may use, and what they write."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.tables import template_environment
from airflow_llmengine.worker.tables.cells import EmptyNull, NullToTell, NullUsedError, nested
from airflow_llmengine.worker.tables.row_templates import RowTemplate, RowTemplateError

NAIVE = datetime.datetime(2024, 5, 31, 17, 0, 0, 250_000)  # noqa: DTZ001 - as columns without a zone have it
BERLIN = datetime.timezone(datetime.timedelta(hours=2))


def rendered(template: str, null: Any = None, **cells: Any) -> str:
    found = {name: nested(value, NullToTell() if null is None else null) for name, value in cells.items()}
    return RowTemplate(template, "table.prompt", list(cells)).render(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (7, "7"),
        (2**70, str(2**70)),
        (1.5, "1.5"),
        (1e300, "1e+300"),
        (Decimal("1.10"), "1.10"),
        (Decimal("1E+3"), "1000"),
        (True, "true"),
        (False, "false"),
        (datetime.date(2024, 5, 31), "2024-05-31"),
        (datetime.datetime(2024, 5, 31, 17, tzinfo=BERLIN), "2024-05-31 17:00:00+02:00"),
        (NAIVE, "2024-05-31 17:00:00.250000"),
        (datetime.time(17, 5), "17:05:00"),
        (datetime.timedelta(hours=25), "1 day, 1:00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (["a", None, 1.5, True], '["a", null, 1.5, true]'),
        (
            {"name": "Ü<", "since": datetime.date(2024, 5, 31), "none": None},
            '{"name": "Ü<", "since": "2024-05-31", "none": null}',
        ),
        ([float("nan"), Decimal("2.50"), [{}]], '[null, "2.50", [{}]]'),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_a_cell_is_written_as(value: Any, text: str) -> None:
    assert rendered("<{{ cell }}>", cell=value) == f"<{text}>"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_is_written_letter_for_letter(text: str) -> None:
    assert rendered("{{ cell }}", cell=text) == text
    assert rendered("{{ row['cell'] }}\n", cell=text) == text + "\n"
    assert json.loads(rendered("{{ cell|tojson }}", cell=text)) == text


def lists_and_structs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner) | st.dictionaries(st.text(), inner)


@given(lists_and_structs(st.recursive(st.none() | st.booleans() | st.text() | st.integers(), lists_and_structs)))
def test_lists_and_structs_are_written_as_their_json(value: Any) -> None:
    assert json.loads(rendered("{{ cell }}", cell=value)) == value


def test_json_is_not_escaped_for_web_pages() -> None:
    assert rendered("{{ cell|tojson }}", cell="<a> & 'b'") == "\"<a> & 'b'\""


def test_cells_are_never_rendered_themselves() -> None:
    hostile = "{{ 7*7 }}{% raw %}{{ row.secret }}{{ ''.__class__ }}"
    assert rendered("{{ cell }}", cell=hostile, secret="s") == hostile
    assert rendered("{{ cell|upper|lower }}", cell="{{ row.secret }}", secret="s") == "{{ row.secret }}"


@pytest.mark.parametrize(
    "name",
    ["with space", "with.dot", 'with "quotes"', "it's", "emoji 🎈", "", "class", "items", "row", "loop", "range"],
)
def test_a_column_of_any_name_is_reached(name: str) -> None:
    template = RowTemplate(f"{{{{ row[{json.dumps(name, ensure_ascii=False)}] }}}}", "table.prompt", [name, "other"])
    assert template.columns == {name}
    assert template.render({name: "cell"}) == "cell"


@pytest.mark.parametrize("name", ["text", "items", "namespace", "range", "dict", "größe"])
def test_a_column_whose_name_is_one_is_reached_by_it_alone(name: str) -> None:
    for source in (f"{{{{ {name} }}}}", f"{{{{ row.{name} }}}}"):
        template = RowTemplate(source, "table.prompt", [name])
        assert template.columns == {name}
        assert template.render({name: "cell"}) == "cell"


def test_names_that_jinja_takes_for_others_are_refused() -> None:
    for source in ("{{ \ufb01 }}{{ fi }}", "{% for fi in 'ab' %}{{ \ufb01 }}{% endfor %}"):
        with pytest.raises(InputInvalidError, match=r"which Jinja takes for one name: write row\["):
            RowTemplate(source, "table.prompt", ["\ufb01", "fi"])
    with pytest.raises(InputInvalidError, match=r"uses self, which is the template itself: write row\['self'\]"):
        RowTemplate("{{ self }}", "table.prompt", ["self"])
    cells = {"\ufb01": 1, "fi": 2, "self": 3}
    template = RowTemplate("{{ row['\ufb01'] }}{{ fi }}{{ row.self }}", "table.prompt", list(cells))
    assert template.render(cells) == "123"


def test_a_field_of_a_struct_is_not_hidden_by_a_method() -> None:
    assert rendered("{{ cell.items }}, {{ cell['get'] }}", cell={"items": 3, "get": "b"}) == "3, b"


def test_only_columns_that_are_named_are_used() -> None:
    template = RowTemplate(
        "{% for word in text.split() %}{{ loop.index }}{{ row['b c'] }}{% endfor %}", "", ["text", "b c", "d"]
    )
    assert template.columns == {"text", "b c"}
    assert not template.whole_row


@pytest.mark.parametrize("template", ["{{ row }}", "{{ row|tojson }}", "{% for n in row %}{{ row[n] }}{% endfor %}"])
def test_a_row_as_a_whole_is_noticed(template: str) -> None:
    assert RowTemplate(template, "table.prompt", ["a", "b"]).whole_row


def test_a_row_as_a_whole_is_json() -> None:
    assert rendered("{{ row }}", a="x", b=[1]) == '{"a": "x", "b": [1]}'


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ titel }}", "table.prompt uses 'titel', which is no column of the input: did you mean 'title'?"),
        ("{{ row.titel }}", "did you mean 'title'?"),
        ("{{ row['titel'] }}", "did you mean 'title'?"),
        ("{% if q is defined %}{% endif %}", "uses 'q', which is no column of the input; it has 'title'."),
        ("{% if title %}", "table.prompt is no template: line 1: "),
        ("\n{{ title", "table.prompt is no template: line 2: "),
        ("{{ title|nosuch }}", "No filter named 'nosuch'"),
        ("{{ [title]|random }}", "No filter named 'random'"),
        ("{{ lipsum() }}", "uses 'lipsum', which is no column"),
        ("{% for a in title %}" * 30 + "{% endfor %}" * 30, "no template that can be run: it is nested too deeply"),
        ("{{ " + "(" * 5000 + "title" + ")" * 5000 + " }}", "no template that can be run: it is nested too deeply"),
        ("{{ " + "-" * 5000 + "1 }}", "no template that can be run: it is nested too deeply"),
        ("{{ " + "9" * 5000 + " }}", "or has a number of thousands of digits"),
        ("{% include 'other' %}", "has {% include %}, and there are no other templates"),
        ("{% from 'other' import x %}", "has {% from %}"),
    ],
)
def test_what_is_no_template_over_the_columns_is_refused(template: str, reason: str) -> None:
    with pytest.raises(InputInvalidError) as refused:
        RowTemplate(template, "table.prompt", ["title"])
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("\n{{ title + 1 }}", "table.prompt (line 2) fails on it (TypeError)"),
        ("{{ title.strip(1, 2, 3) }}", "fails on it (TypeError)"),
        ("{{ 1 // 0 }}", "fails on it (ZeroDivisionError)"),
        ("{{ title.__class__ }}", "fails on it (SecurityError)"),
        ("{{ title.nothing }}", "table.prompt (line 1) uses a part of a cell that is not there"),
        ("{{ title.upper }}", "table.prompt (line 1) writes a Python builtin_function_or_method, which is no text"),
        ("{{ blob }}", "writes bytes, which is no text"),
        ("{{ [blob] }}", "writes bytes, which is no text"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails on it (OverflowError)"),
    ],
)
def test_a_template_that_fails_on_a_row_says_where_and_not_what_is_in_it(template: str, reason: str) -> None:
    with pytest.raises(RowTemplateError) as failed:
        rendered(template, title="very private", blob=b"very private")
    assert reason in str(failed.value)
    assert "private" not in str(failed.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ cell.a }}",
        "{{ cell.a|upper }}",
        "{{ cell.a ~ '' }}",
        "{{ cell.a|string }}",
        "{{ cell.b|join }}",
        "{{ cell.a + 1 }}",
        "{{ '%s'|format(cell.a) }}",
        "{{ '{}'.format(cell.a) }}",
        "{{ cell.c }}",
    ],
)
def test_a_null_within_a_cell_is_never_written(template: str) -> None:
    with pytest.raises(NullUsedError):
        rendered(template, cell={"a": None, "b": ["x", None], "c": float("nan")})


def test_a_null_within_a_cell_can_be_asked_for() -> None:
    template = "{{ cell.a|default('?') }}{% if cell.a %}yes{% elif cell.a is not defined %}no{% endif %}"
    assert rendered(template, cell={"a": None}) == "?no"


def test_a_null_within_a_cell_may_be_an_empty_text() -> None:
    assert (
        rendered("<{{ cell.a }}{{ cell.a|upper }}{{ cell.b|join }}>", EmptyNull(), cell={"a": None, "b": [None]})
        == "<>"
    )
    assert rendered("{{ cell }}", EmptyNull(), cell={"a": None}) == '{"a": null}'


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ flag ~ ', ' ~ parts }}", 'true, ["a", true]'),
        ("{{ parts|join(', ') }}", "a, true"),
        ("{{ flag|string }}", "true"),
        ("{{ price ~ '' }}", "1000"),
        ("{{ structs|join(', ', attribute='a') }}", "false, 2"),
        ("{{ 'a' ~ 1 ~ none|default('b', true) }}", "a1b"),
        ("{% for part in parts %}{{ loop.index ~ part }}{% endfor %}", "1a2true"),
    ],
)
def test_what_is_joined_is_written_as_it_is_alone(template: str, text: str) -> None:
    cells = {"flag": True, "parts": ["a", True], "price": Decimal("1E+3"), "structs": [{"a": False}, {"a": 2}]}
    assert rendered(template, **cells) == text


@pytest.mark.parametrize("template", ["{{ [blob]|join }}", "{{ 'a' ~ blob }}", "{{ blob|string }}"])
def test_bytes_are_no_text_where_they_are_joined_either(template: str) -> None:
    with pytest.raises(RowTemplateError, match="writes bytes, which is no text"):
        rendered(template, blob=b"private")


@pytest.mark.parametrize("template", ["{{ day.today() }}", "{{ at.now() }}", "{{ at.utcnow() }}", "{{ at['now']() }}"])
def test_no_template_asks_the_clock(template: str) -> None:
    with pytest.raises(RowTemplateError, match="SecurityError"):
        rendered(template, day=NAIVE.date(), at=NAIVE)


LOOPS = "{% for a in range(100) %}{% for b in range(100) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        LOOPS,
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(20) }}",
        "{% for a in nested recursive %}{{ loop(nested) if loop.depth < 20 }}{% endfor %}",
    ],
)
def test_a_template_that_would_go_on_for_ever_ends(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_environment, "MOST_STEPS", 300)
    with pytest.raises(RowTemplateError, match="takes more than 300 steps of its loops") as failed:
        rendered(template, nested=[1, 2])
    assert failed.value.error_type is RecordErrorType.INVALID_RECORD


def test_steps_are_counted_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_environment, "MOST_STEPS", 12)
    template = RowTemplate("{% for part in parts %}{{ part }}{% endfor %}", "table.prompt", ["parts"])
    for _row in range(3):
        assert template.render({"parts": list("abcdefghijkl")}) == "abcdefghijkl"
    with pytest.raises(RowTemplateError):
        template.render({"parts": list("abcdefghijklm")})


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'ab' * many }}",
        "{{ many * ['ab'] }}",
        "{{ 'a'.ljust(many) }}",
        "{{ '1'.zfill(many) }}",
        "{{ 'a'|center(many) }}",
        "{{ 'a\nb'|indent(many) }}",
        "{% for a in range(9) %}{{ text }}{% endfor %}",
        "{% set all %}{% for a in range(9) %}{{ text }}{% endfor %}{% endset %}{{ all|length }}",
        "{{ [text, text, text, text, text]|join('---') }}",
        "{{ (text ~ text ~ text ~ text ~ text ~ text)|length }}",
        "{% set n = namespace(t='ab') %}{% for a in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t|length }}",
        "{% set n = namespace(t=[1]) %}{% for a in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t|length }}",
    ],
)
def test_a_text_that_no_record_could_have_is_not_made(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_environment, "MAX_RECORD_BYTES", 1000)
    with pytest.raises(RowTemplateError, match="makes a text of more than 1000 bytes, and a record may") as failed:
        rendered(template, many=10**12, text="x" * 200)
    assert failed.value.error_type is RecordErrorType.RECORD_TOO_LARGE


def test_a_number_that_would_take_all_memory_is_not_made() -> None:
    for template in (
        "{{ many ** many }}",
        "{% set n = namespace(t=9) %}{% for a in range(60) %}{% set n.t = n.t * n.t %}{% endfor %}",
    ):
        with pytest.raises(RowTemplateError, match="makes a whole number of more than 100000 bits"):
            rendered(template, many=10**9)
    assert rendered("{{ 2 ** 10 }}|{{ 3 * 4 + 1 }}|{{ 2 ** 0.5 > 1 }}|{{ [1] + [2] }}") == "1024|13|true|[1, 2]"
