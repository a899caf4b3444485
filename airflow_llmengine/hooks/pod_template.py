"""The pod in a connection's field ``pod_template``, as the Kubernetes client reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_llmengine.exceptions import ConnectionUnusableError

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

_LACKING = re.compile(r"Invalid value for `(\w+)`, must not be `None`")


def read_pod_template(template: Mapping[str, Any]) -> V1Pod:
    """Make the pod that the template is.

    Raises:
        ConnectionUnusableError: It can't be read as a pod. The message quotes nothing of it: it may hold secrets.
    """
    from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
    from kubernetes.client.exceptions import ApiException

    try:
        pod: V1Pod = PodGenerator.deserialize_model_dict(dict(template))
    except (ValueError, TypeError, AttributeError, ApiException) as error:
        lacking = _LACKING.match(str(error))
        fault = f"a part of it lacks {_as_in_a_manifest(lacking[1])}" if lacking else "a value in it is of a wrong type"
        raise ConnectionUnusableError(
            f"The connection's pod_template can't be read as a pod: {fault}. Correct it there."
        ) from None
    return pod


def _as_in_a_manifest(attribute: str) -> str:
    first, *others = attribute.split("_")
    return first + "".join(word.capitalize() for word in others)
