"""What is in ``docker/``."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


def versions() -> dict[str, str]:
    """The one place where versions are."""
    lines = (DOCKER / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def steps(dockerfile: Path) -> list[tuple[str, str]]:
    """Instructions with their values."""
    structure = DockerfileParser(fileobj=io.BytesIO(dockerfile.read_bytes())).structure
    return [(step["instruction"], step["value"]) for step in structure if step["instruction"] != "COMMENT"]


def arguments(dockerfile: Path) -> dict[str, str]:
    """The build arguments that have a default, before the first stage or in one."""
    pairs = [value.partition("=") for instruction, value in steps(dockerfile) if instruction == "ARG"]
    return {name: default for name, equals, default in pairs if equals}


def compose() -> dict[str, Any]:
    """``compose.yaml`` with the versions put in."""
    text = re.sub(r"\$\{(\w+):\?\}", lambda found: versions()[found[1]], (DOCKER / "compose.yaml").read_text())
    services: dict[str, Any] = yaml.safe_load(text)
    return services
