"""The documentation builds without a warning: every link, anchor and included file is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import PAGES, ROOT


def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    pages = {path.parent.name for path in tmp_path.glob("*/index.html")}
    assert pages >= {page.stem for page in PAGES if page.stem != "index"}
    fetched = [
        path.name
        for path in tmp_path.rglob("*.html")
        if any(tag in path.read_text() for tag in ('<script src="http', '<link rel="stylesheet" href="http'))
    ]
    assert fetched == []
