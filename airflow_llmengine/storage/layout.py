"""What jobs call the things that they put beside their outputs. A contract: other tools look for these names."""

from __future__ import annotations

MANIFEST_SUFFIX = ".manifest.json"
"""Added to the name of an output: its manifest."""

JOB_SUFFIX = ".job"
"""Added to the name of an output: the folder of its job's state."""
