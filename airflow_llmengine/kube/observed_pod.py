"""What the API server says of a pod, laid out for questions about its end.

Read from the JSON form, so that the models of both Python clients, a watch's raw objects and a stored state serve
alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

JSON = Mapping[str, Any]

LONGEST_QUOTE = 400
"""Characters of somebody else's message that are quoted."""

ContainerPhase = Literal["waiting", "running", "terminated"]


def to_json(model: Any) -> JSON:
    """A Kubernetes object by its names on the wire; times may stay ``datetime``.

    Args:
        model: A model of ``kubernetes`` or ``kubernetes_asyncio``, or such a mapping already.
    """
    return model if isinstance(model, Mapping) else model.to_dict(serialize=True)


def quoted(text: str) -> str:
    """Somebody else's text on one line, cut where it is too long, with one full stop."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(plain.split()).rstrip(".")
    return f"{line[:LONGEST_QUOTE]}…" if len(line) > LONGEST_QUOTE else f"{line}."


class ObservedPod:
    """One pod as it was last seen.

    Args:
        pod: The pod.
        events: The events about it, in any order.
    """

    def __init__(self, pod: JSON, events: Sequence[JSON]) -> None:
        self._pod = pod
        self.metadata: JSON = pod.get("metadata") or {}
        self.spec: JSON = pod.get("spec") or {}
        self.status: JSON = pod.get("status") or {}
        self._events = sorted(events, key=_last_seen)

    @property
    def name(self) -> str:
        """``namespace/name``."""
        named = self.metadata or next(
            (event["involvedObject"] for event in self._events if event.get("involvedObject")), {}
        )
        return "/".join(str(part) for part in (named.get("namespace"), named.get("name")) if part)

    @property
    def phase(self) -> str:
        """``Pending``, ``Running``, ``Succeeded``, ``Failed`` or ``Unknown``."""
        return str(self.status.get("phase") or "Pending")

    @property
    def reason(self) -> str:
        """Why the pod as a whole is what it is; mostly empty."""
        return str(self.status.get("reason") or "")

    @property
    def message(self) -> str:
        """The same for people."""
        return str(self.status.get("message") or "")

    @property
    def node(self) -> str:
        """Where it was placed; empty before."""
        return str(self.spec.get("nodeName") or "")

    @property
    def is_being_deleted(self) -> bool:
        """Whether its deletion is under way."""
        return self.metadata.get("deletionTimestamp") is not None

    @property
    def init_containers(self) -> set[str]:
        """The names of the containers that run before the others."""
        return {str(c.get("name")) for c in self.status.get("initContainerStatuses") or ()}

    def condition(self, kind: str) -> JSON:
        """A condition; empty where there is none."""
        return next((c for c in self.status.get("conditions") or () if c.get("type") == kind), {})

    def containers(self) -> Iterator[JSON]:
        """The status of every container, those that run before the others first."""
        for field in ("initContainerStatuses", "containerStatuses"):
            yield from self.status.get(field) or ()

    def container(self, name: str) -> JSON:
        """The status of a container by name; empty where there is none."""
        return next((c for c in self.status.get("containerStatuses") or () if c.get("name") == name), {})

    def limit(self, container: str, resource: str) -> str | None:
        """A container's limit of a resource, as written."""
        for spec in self.spec.get("containers") or ():
            if spec.get("name") == container:
                limit = ((spec.get("resources") or {}).get("limits") or {}).get(resource)
                return None if limit is None else str(limit)
        return None

    def image(self, container: str) -> str:
        """The image that a container asks for."""
        for spec in (*(self.spec.get("initContainers") or ()), *(self.spec.get("containers") or ())):
            if spec.get("name") == container:
                return str(spec.get("image") or "")
        return ""

    def was_started(self, container: str) -> bool:
        """Whether a container has run, by the events: the kubelet drops the status of what it evicts."""
        return any(
            said.rstrip(".") in (f"Started container {container}", "Container started")
            for said in self.events("Started")
        )

    def events(self, *reasons: str) -> list[str]:
        """The messages of events with one of these reasons, the latest first."""
        return [str(e.get("message") or "") for e in reversed(self._events) if e.get("reason") in reasons]


def state(container: JSON) -> tuple[ContainerPhase, JSON]:
    """What a container does now and its particulars.

    One that is to be started again after its end counts as ended: the worker is never meant to be.
    """
    states: JSON = container.get("state") or {}
    last: JSON = (container.get("lastState") or {}).get("terminated") or {}
    if states.get("terminated"):
        return "terminated", states["terminated"]
    if states.get("running"):
        return "running", states["running"]
    waiting: JSON = states.get("waiting") or {}
    if last and waiting.get("reason") == "CrashLoopBackOff":
        return "terminated", last
    return "waiting", waiting


def _last_seen(event: JSON) -> str:
    series: JSON = event.get("series") or {}
    metadata: JSON = event.get("metadata") or {}
    moment = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or metadata.get("creationTimestamp")
        or ""
    )
    return moment if isinstance(moment, str) else str(moment.isoformat())
