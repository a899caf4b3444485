"""The form in which a model writes code for ``code_evaluator`` to run, from the wire contract; prompts show it.

A block is ``OPENING``, the code, ``CLOSING``, its output and ``MARKER``.
"""

from __future__ import annotations

OPENING = "```python\n"
"""Begins a block."""

CLOSING = "\n```\n"
"""Ends a block; its first line break may be the opening's."""

MARKER = "\n>>>\n"
"""Ends a block's output: the model stops here, so that what it made up can be replaced by what the code printed."""
