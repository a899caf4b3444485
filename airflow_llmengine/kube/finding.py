"""What can be found out about a pod: a kind for programs, and a sentence for people."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "pending",
    "queued",
    "unschedulable",
    "image_pull_failing",
    "image_unavailable",
    "misconfigured",
    "volume_not_mounted",
    "not_started",
    "running",
    "succeeded",
    "exited",
    "out_of_memory",
    "out_of_storage",
    "evicted",
    "preempted",
    "node_lost",
    "refused_by_node",
    "deadline_exceeded",
    "deleted",
]
"""What happened, or what it waits for.

``queued``: held back by a scheduling gate, as Kueue does. ``unschedulable``: no node takes it. ``image_pull_failing``:
its image may come yet, or is on its way; ``image_unavailable``: it will not come. ``misconfigured``: it names something
that does not exist, or asks for what can't be run. ``volume_not_mounted`` and ``not_started``: a node takes it, and
can't start it.
``pending``: nobody says why it has not started. ``exited``: the worker ended by itself, with ``exit_code``.
``out_of_storage``: evicted for using more ephemeral storage than its own limit. ``evicted``: for the sake of its node,
or by somebody who drains it. ``refused_by_node``: it was placed where it could not run. ``deadline_exceeded``: past
``activeDeadlineSeconds``. ``deleted``: it is gone, or going, by somebody's hand.
"""

Finding = tuple[Kind, str]
"""What happened, and the sentence that says so."""


def within(called: str) -> str:
    """What a pod is called, in the middle of a sentence."""
    return called[0].lower() + called[1:]
