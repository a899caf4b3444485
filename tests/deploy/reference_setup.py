"""The manifests of ``deploy/``, as ``kubectl apply -k`` would send them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NAMESPACE = "llm"


def manifests(folder: str = "") -> list[dict[str, Any]]:
    """All that the folder's kustomization names, in its order."""
    resources = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["resources"]
    return [each for file in resources for each in yaml.safe_load_all((DEPLOY / folder / file).read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    """One of them."""
    (found,) = [each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found
