"""One coverage-guided fuzzer, by atheris: ``python -m tests.fuzz.coverage_guided TARGET SECONDS FOLDER``.

atheris has no wheels for every machine that the project is tested on, so it is no dependency: ``pip install atheris``
where it can be had. What it finds is kept in the folder: give its bytes to the target of ``oracles.targets`` in a test,
and mend the fault.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path


def main(target: str, seconds: int, folder: Path) -> None:
    """Fuzz a target; ends the process, with an error if something was found."""
    atheris = importlib.import_module("atheris")
    # Whatever is imported for the first time in here is watched: nothing of the package may have been before.
    with atheris.instrument_imports(include=["airflow_llmengine", "json"]):
        from tests.fuzz import oracles
        from tests.fuzz.inputs import FILES, INLINE_REQUEST, RECORDS, REQUEST, TOKENS
        from tests.fuzz.state import CHUNKS, STATE
        from tests.worker.readers.files import COMPRESSIONS

    judge = dict(oracles.targets())[target]
    seeds = {
        "files": [compress(data) for data in FILES.values() for compress in COMPRESSIONS.values()],
        "values": [json.dumps(record).encode() for record in RECORDS],
        "requests": [json.dumps(request).encode() for request in (REQUEST, INLINE_REQUEST)],
        "state": [json.dumps(document).encode() for document in STATE],
        "chunks": CHUNKS,
    }[target]
    corpus = folder / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    dictionary = folder / "dictionary"
    words = ("".join(f"\\x{byte:02x}" for byte in token) for token in TOKENS if len(token) <= 60)
    dictionary.write_text("".join(f'"{word}"\n' for word in words))
    options = [
        f"-max_total_time={seconds}",
        f"-dict={dictionary}",
        f"-artifact_prefix={folder}/{target}-",
        "-timeout=20",
        "-max_len=4096",
        "-len_control=0",
    ]
    with tempfile.TemporaryDirectory(prefix="llmengine-fuzz-") as work:
        atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: judge(data, Path(work)))
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
