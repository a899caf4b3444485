"""docs/failures.md says what people read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.failures import FAULTS, PAGE, page
from tests.faults.invariants import EXCEPTION
from tests.faults.pod_failures import HAS_TO_FIT, REFUSALS, pods
from tests.kube.states import STATES


@pytest.mark.slow
def test_the_page_says_what_is_said(tmp_path: Path) -> None:
    made = page(tmp_path)
    if os.environ.get("WRITE_DOCS"):
        PAGE.write_text(made)
    assert made == PAGE.read_text(), "the page is made anew by `make docs`"


def test_the_page_says_what_is_said_of_pods() -> None:
    assert pods() in PAGE.read_text(), "the page is made anew by `make docs`"


def test_every_message_is_a_sentence_with_a_next_step() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`" in line]
    of_workers = [row[4] for row in rows if len(row) == 5]
    of_pods = [row[3] for row in rows if len(row) == 4]
    assert len(of_workers) == sum(len(faults) for _title, faults in FAULTS)
    assert len(of_pods) == len(REFUSALS) + sum(bool(state.what) for state in STATES) + 2 * len(HAS_TO_FIT)
    for message in of_workers + of_pods:
        assert not EXCEPTION.search(message), message
        assert message.rstrip(" |").endswith("."), message
