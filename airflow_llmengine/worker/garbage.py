"""How often Python looks for garbage that only its collector finds."""

from __future__ import annotations

import gc
from typing import Final

ALLOCATIONS: Final = 50_000
"""So many more objects made than freed make it look through the youngest; Python's own default is 700."""


def collect_garbage_seldom() -> None:
    """Have the whole process look for garbage seldom.

    A record is some dozens of objects, which live for as long as it is in work, and go when nobody refers to them. To
    look through those in work every few records costs a sixth of the time that the worker has for them, for nothing.
    """
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
