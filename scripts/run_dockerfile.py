"""Carry out a Dockerfile's steps in a folder, as root, where no container engine runs.

For tests of ``docker/`` and for the image that the tests with pods use; people build images with their own engine. It
knows what ``docker/worker-cpu.Dockerfile`` uses: one stage, ``ARG``, ``COPY`` of the context, ``ENV``, ``RUN`` with
cache mounts, ``USER``, ``WORKDIR``, ``ENTRYPOINT``. Anything else is refused and not left out.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import string
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from docker.utils import exclude_paths
from dockerfile_parse import DockerfileParser

# As container engines do: proxies, and who is trusted, are the machine's business and in no image.
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL")
CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# Mounted while a step runs, where this machine has it.
MACHINES_OWN = ("/dev", "/etc/resolv.conf", "/etc/hosts")

# Everything is mounted in a namespace of the step's own, so that nothing stays mounted, whatever happens.
STEP = """
set -eu
root=$1; shift
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do mount --rbind "$1" "$root$2"; shift 2; done
shift
exec "$@"
"""


class StepError(Exception):
    """A step failed or is not known; the message names it."""


@dataclass
class Image:
    """What is made: a root file system, and what an image says beside it.

    Args:
        root: The root file system.
        context: Where ``COPY`` copies from.
        caches: A folder on this machine with the content of cache mounts; they start empty without.
        mounts: More that steps may read: folders of this machine by their path in the root file system.
        build_args: Values of ``ARG`` that replace the Dockerfile's own.
    """

    root: Path
    context: Path
    caches: Path
    mounts: Mapping[str, Path] = field(default_factory=dict)
    build_args: Mapping[str, str] = field(default_factory=dict)

    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    user: str = "0"
    working_directory: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    stages: int = 0

    def unpack(self, archive: Path) -> None:
        """Start from an image, as ``docker save`` writes one."""
        with tarfile.open(archive) as base:
            (manifest,) = json.load(_member(base, "manifest.json"))
            config = json.load(_member(base, manifest["Config"]))["config"]
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=_member(base, layer)) as files:
                    # An image's own files: devices, owners and all.
                    files.extractall(self.root, numeric_owner=True, filter="fully_trusted")  # noqa: S202
        self.environment = dict(variable.split("=", 1) for variable in config.get("Env") or ())

    def carry_out(self, dockerfile: str) -> None:
        """Carry out all steps of a Dockerfile, given as its text, but for the image that it names."""
        ignored = (self.context / ".dockerignore").read_text().splitlines()
        self._files = sorted(exclude_paths(str(self.context), [line for line in ignored if line[:1] not in ("", "#")]))
        for step in DockerfileParser(fileobj=io.BytesIO(dockerfile.encode())).structure:
            name, value = step["instruction"], step["value"]
            if name == "COMMENT":
                continue
            say(f"{name} {value}")
            known = getattr(self, f"_{name.lower()}", None)
            if known is None:
                raise StepError(f"{name} is not known here: teach scripts/run_dockerfile.py, or do without it")
            known(value)

    def options(self) -> list[str]:
        """What the image says, in the words of a program that makes an archive of the root file system."""
        return [
            *(f"--env={name}={value}" for name, value in self.environment.items()),
            *(f"--entrypoint={word}" for word in self.entrypoint),
            f"--workdir={self.working_directory}",
            f"--user={self.user}",
        ]

    def _from(self, _value: str) -> None:
        self.stages += 1
        if self.stages > 1:
            raise StepError("there is more than one stage, and all would be made on top of one another")

    def _arg(self, value: str) -> None:
        name, _, default = value.partition("=")
        self.arguments[name] = self.build_args.get(name, self._filled_in(default))

    def _env(self, value: str) -> None:
        for pair in shlex.split(value):
            name, _, text = pair.partition("=")
            self.environment[name] = self._filled_in(text)

    def _user(self, value: str) -> None:
        self.user = value

    def _workdir(self, value: str) -> None:
        self.working_directory = value
        self._inside(value).mkdir(parents=True, exist_ok=True)

    def _entrypoint(self, value: str) -> None:
        self.entrypoint = json.loads(value)

    def _copy(self, value: str) -> None:
        *sources, target = value.split()
        if any(source.startswith("--") for source in sources):
            raise StepError(f"COPY is known without options only: {value}")
        for source in sources:
            inside = self.context / source
            # A folder gives its content, a file itself.
            into_folder = target.endswith("/") or len(sources) > 1
            base = inside if inside.is_dir() else inside.parent if into_folder else inside
            found = [file for file in self._files if (self.context / file).is_file() and _is_in(file, source)]
            if not found:
                raise StepError(f"COPY finds no {source} in {self.context}, less what .dockerignore names")
            for file in found:
                copy = self._inside(target) / (self.context / file).relative_to(base)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.context / file, copy)

    def _run(self, value: str) -> None:
        mounts = {path: Path(path) for path in (*MACHINES_OWN, *self._certificates().values()) if Path(path).exists()}
        mounts.update(self.mounts)
        while value.startswith("--"):
            option, _, value = value.partition(" ")
            kind, _, target = option.partition(",target=")
            if kind != "--mount=type=cache":
                raise StepError(f"RUN {option} is not known here")
            mounts[target] = self.caches / target.strip("/").replace("/", "-")
            mounts[target].mkdir(parents=True, exist_ok=True)
            value = value.lstrip()
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        variables = {**passed_on, **self._certificates(), **self.arguments, **self.environment}
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", STEP, "sh", str(self.root)]
        for target, source in mounts.items():
            _make_mount_point(self._inside(target), source)
            command += [str(source), target]
        command += ["--", "chroot", f"--userspec={self.user}", str(self.root), "env", "--ignore-environment"]
        command += [f"{name}={text}" for name, text in {"HOME": "/root", **variables}.items()]
        command += ["sh", "-c", f"cd {shlex.quote(self.working_directory)} && {value}"]
        status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        if status:
            raise StepError(f"the step ended with status {status}: RUN {value}")

    def _certificates(self) -> dict[str, str]:
        return {name: os.environ[name] for name in CERTIFICATES if name in os.environ}

    def _filled_in(self, text: str) -> str:
        return string.Template(text).substitute({**self.arguments, **self.environment})

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _member(archive: tarfile.TarFile, name: str) -> io.BufferedReader:
    found = archive.extractfile(name)
    if found is None:
        raise StepError(f"the base image has no file {name}")
    return found  # type: ignore[return-value]


def _is_in(file: str, source: str) -> bool:
    return file == source or Path(source) in Path(file).parents


def _make_mount_point(point: Path, source: Path) -> None:
    if point.exists():
        return
    point.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        point.mkdir()
    else:
        point.touch()


def say(line: str) -> None:
    """Print at once, between what the steps print."""
    print(line, flush=True)


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE``, as options give it."""
    return dict(text.split("=", 1) for text in texts)


def main() -> int:
    """Carry out a Dockerfile, and write down what the image says beside its files."""
    parser = argparse.ArgumentParser(description="Carry out a Dockerfile's steps in a folder, without an engine.")
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("root", type=Path, help="the folder; made")
    parser.add_argument("--base", type=Path, required=True, help="archive of the image that stands for FROM's")
    parser.add_argument("--context", type=Path, default=Path(), help="what COPY copies from (default: this folder)")
    parser.add_argument("--caches", type=Path, required=True, help="folder with what cache mounts keep")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--mount", action="append", default=[], metavar="PATH=FOLDER", help="more that steps may read")
    parser.add_argument("--options", type=Path, required=True, help="file for what the image says, one to a line")
    given = parser.parse_args()
    given.root.mkdir(parents=True)
    image = Image(
        given.root.resolve(),
        given.context.resolve(),
        given.caches.resolve(),
        {path: Path(folder).resolve() for path, folder in pairs(given.mount).items()},
        pairs(given.build_arg),
    )
    try:
        image.unpack(given.base)
        image.carry_out(given.dockerfile.read_text())
    except StepError as error:
        sys.stderr.write(f"{given.dockerfile}: {error}\n")
        return 1
    given.options.write_text("".join(f"{option}\n" for option in image.options()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
