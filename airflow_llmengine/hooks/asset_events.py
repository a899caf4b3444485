"""What the asset events of a task say of the job that succeeded. Nothing of prompts or answers."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

    from airflow_llmengine.spec.manifest import Manifest

_OF_URIS = "".join(sorted(set(string.punctuation) - {"?", "#"})) + " "
"""What stays as it is in the URI of an asset. Airflow's API server takes ASCII alone, and fails a task that has
succeeded; what follows a ``?`` or ``#`` Airflow drops, and two outputs would be one asset."""


def event_extra(manifest: Manifest) -> dict[str, Any]:
    """What the event of an outlet carries as its ``extra``: what is in the output, and of which job it is."""
    return {
        "output_data_path": manifest.output_data_path,
        "records": manifest.records,
        "succeeded": manifest.succeeded,
        "truncated": manifest.truncated,
        "skipped": manifest.skipped,
        "failed": manifest.failed,
        "prompt_tokens": manifest.prompt_tokens,
        "completion_tokens": manifest.completion_tokens,
        "model": manifest.model,
        "model_identity": manifest.model_identity,
        "fingerprint": manifest.fingerprint,
        "generation": manifest.generation,
    }


def fill_asset_events(context: Context, outlets: Iterable[Any], manifest: Manifest) -> None:
    """Give the events that Airflow makes of a task's outlets their ``extra``.

    The run's partition key is on each event without anybody's doing. An ``AssetAlias`` gets an event of the asset whose
    URI is the output's: outlets are no templates, so an asset can't name an output that each run has for itself.

    Args:
        context: The task's context.
        outlets: The task's outlets.
        manifest: Of the job that succeeded.
    """
    outlets = list(outlets)
    if not outlets:
        return
    from airflow.sdk import Asset, AssetAlias
    from airflow.sdk.definitions.asset import AssetRef
    from airflow.sdk.exceptions import AirflowRuntimeError

    extra = event_extra(manifest)
    for outlet in outlets:
        if isinstance(outlet, Asset | AssetRef):
            try:
                event = context["outlet_events"][outlet]
            except AirflowRuntimeError:
                # There is no such asset, of which Airflow warns and makes no event.
                continue
            event.extra = {**event.extra, **extra}
        elif isinstance(outlet, AssetAlias):
            context["outlet_events"][outlet].add(_asset_of(manifest.output_data_path), extra)


def _asset_of(path: str) -> Asset:
    from airflow.sdk import Asset

    path = quote(path, safe=_OF_URIS, errors="surrogatepass")
    return Asset(path if "://" in path else f"file://{path}")
