"""Makes this interpreter, and each that it starts, one in which Airflow and Kubernetes' clients are not installed.

Python imports ``sitecustomize`` at start when its folder is on ``PYTHONPATH``; child processes inherit that. It stands
for the worker's image, which has neither; the tests' own environment has both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ABSENT = ("airflow", "kubernetes", "kubernetes_asyncio")


class _Absent(MetaPathFinder):
    """Finds the absent packages first, and says that they are not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse the absent packages and leave every other module to the next finder."""
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r} (kept out by the tests)", name=fullname)
        return None


sys.meta_path.insert(0, _Absent())
