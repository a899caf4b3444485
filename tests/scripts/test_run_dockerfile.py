"""A Dockerfile's steps without a container engine: what must not pass in silence. CI's own build shows ``RUN``."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.run_dockerfile import Image, StepError


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """A root file system with nothing in it yet, and a context."""
    root, context = tmp_path / "root", tmp_path / "context"
    root.mkdir()
    (context / "package" / "inner").mkdir(parents=True)
    (context / "package" / "inner" / "module.py").write_text("1")
    (context / "package" / "module.pyc").touch()
    (context / "README.md").write_text("read")
    (context / ".dockerignore").write_text("# comment\n**/*.pyc\n")
    return Image(root, context, tmp_path / "caches", build_args={"GIVEN": "by the user"})


def test_files_are_copied_as_docker_does_it_and_what_is_ignored_is_not(image: Image) -> None:
    image.carry_out("FROM a\nCOPY package README.md /src/\nCOPY package /opt/package\nCOPY README.md /other")
    found = {str(path.relative_to(image.root)) for path in image.root.rglob("*") if path.is_file()}
    assert found == {"src/inner/module.py", "src/README.md", "opt/package/inner/module.py", "other"}
    assert (image.root / "other").read_text() == "read"


def test_what_the_image_says_is_told(image: Image) -> None:
    image.environment = {"PATH": "/bin"}
    image.carry_out(
        """
        ARG VERSION=1
        ARG GIVEN=by the file
        FROM debian:${VERSION}
        ENV PATH=/opt/bin:$PATH NAME="two words" TOLD=$GIVEN
        WORKDIR /work
        USER 1000:1000
        ENTRYPOINT ["python", "-m", "module"]
        """
    )
    assert image.options() == [
        "--env=PATH=/opt/bin:/bin",
        "--env=NAME=two words",
        "--env=TOLD=by the user",
        "--entrypoint=python",
        "--entrypoint=-m",
        "--entrypoint=module",
        "--workdir=/work",
        "--user=1000:1000",
    ]
    assert (image.root / "work").is_dir()


@pytest.mark.parametrize(
    ("dockerfile", "said"),
    [
        ("FROM a\nHEALTHCHECK CMD true", "HEALTHCHECK is not known"),
        ('FROM a\nENTRYPOINT ["b"]\nFROM c', "more than one stage"),
        ("FROM a\nCOPY --from=other /a /b", "COPY is known without options only"),
        ("FROM a\nCOPY missing /b", "COPY finds no missing"),
        ("FROM a\nCOPY package/module.pyc /b", "COPY finds no package/module.pyc"),
        ("FROM a\nRUN --mount=type=secret,target=/s true", "--mount=type=secret,target=/s is not known"),
    ],
)
def test_what_is_not_known_is_refused(image: Image, dockerfile: str, said: str) -> None:
    with pytest.raises(StepError, match=said):
        image.carry_out(dockerfile)
