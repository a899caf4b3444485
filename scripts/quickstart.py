"""Run the quickstart DAG with a real model on this machine, and show what comes out. Called by ``make quickstart``.

Everything is kept in one folder, ``.quickstart`` in the checkout: Airflow's home with its SQLite database, Airflow's
whole log of the last run, and the output. The model is kept in the user's cache, where the engine tests find it too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
DAG_ID = "llmengine_quickstart"

# Airflow's log to a terminal: time, level, what happened, [who says so], details.
LOG_RECORD = re.compile(r"^\d{4}-\d\d-\d\dT\S+ \[(?P<level>\w+) *\] (?P<rest>.*)$")
OUR_OPERATOR = re.compile(r"^(?P<event>.*?) +\[airflow\.task\.operators\.airflow_llmengine[^]]*\]")


class QuickstartError(Exception):
    """A step failed; the message says which and where its output is."""


def main() -> int:
    """Prepare the model and Airflow's home, run the DAG, and show the result."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        environment = airflow_environment(folder, arguments.engine)
        if arguments.engine == "vllm":
            environment["LLMENGINE_QUICKSTART_MODEL"] = prepare_model(environment)
        prepare_database(folder, environment)
        run_dag(folder, environment)
    except QuickstartError as error:
        sys.stderr.write(f"\n{error}\n")
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run the quickstart DAG on this machine and show its result.")
    parser.add_argument(
        "--engine",
        choices=("vllm", "echo"),
        default="vllm",
        help="vllm: a real model (default); echo: a stand-in that gives each prompt back, in a few seconds",
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".quickstart", help="where everything is kept (default: %(default)s)"
    )
    return parser.parse_args()


def airflow_environment(folder: Path, engine: str) -> dict[str, str]:
    """What an administrator would set up once: Airflow's home, the folder of the DAGs, and the connection."""
    connection = {"conn_type": "llmengine", "extra": {"launcher": "local", "engine": engine}}
    return os.environ | {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        # Somebody looks on: a failed task is tried again at once, not after Airflow's five minutes.
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "5",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_LLMENGINE_DEFAULT": json.dumps(connection),
        "LLMENGINE_QUICKSTART_FOLDER": str(folder / "output"),
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def prepare_model(environment: dict[str, str]) -> str:
    """Make the model's directory, or find it made; return its path."""
    say("Preparing SmolLM2-135M-Instruct (half a minute, once)")
    command = [sys.executable, str(ROOT / "scripts" / "prepare_quickstart_model.py")]
    result = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise QuickstartError("The model could not be prepared: see above.")
    directory = result.stdout.splitlines()[-1]
    say(f"The model is in {directory}")
    return directory


def prepare_database(folder: Path, environment: dict[str, str]) -> None:
    """Make Airflow's database, or bring it up to date, once for each version of Airflow."""
    done = folder / "airflow" / f"database-of-{metadata.version('apache-airflow-core')}"
    if done.exists():
        return
    say("Making Airflow's database")
    log = folder / "airflow-database.log"
    with log.open("w") as file:
        command = [airflow(), "db", "migrate"]
        result = subprocess.run(command, check=False, env=environment, stdout=file, stderr=subprocess.STDOUT)
    if result.returncode:
        raise QuickstartError(f"Airflow's database could not be made: see {log}.")
    done.touch()


def run_dag(folder: Path, environment: dict[str, str]) -> None:
    """Run the DAG as Airflow's users try a DAG out; show what the tasks say, and keep the rest in a file."""
    say(f"Running the DAG: airflow dags test {DAG_ID}")
    log = folder / "airflow.log"
    command = [airflow(), "dags", "test", DAG_ID]
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        try:
            for line in worth_showing(kept_in(file, process.stdout or ())):
                say(line)
        except BaseException:
            # Ended from outside: Airflow ends its task, and that its worker.
            process.terminate()
            raise
    if process.returncode:
        raise QuickstartError(f"The DAG failed; Airflow's whole log is in {log}.")
    say(f"Airflow's whole log of this run is in {log}.")


def kept_in(file: TextIO, lines: Iterable[str]) -> Iterator[str]:
    """Write each line to the file as it passes."""
    for line in lines:
        file.write(line)
        yield line.rstrip("\n")


def worth_showing(lines: Iterable[str]) -> Iterator[str]:
    """What a task prints, what our operator logs, and of an error its last line; not what Airflow logs of itself."""
    level = ""
    failure = ""
    for line in lines:
        record = LOG_RECORD.match(line)
        if record is None:
            # A print of a task, or the rest of a record of several lines: a traceback, or the text of a warning.
            if level == "error":
                failure = failure if line.startswith((" ", "\t")) or not line else line
            elif level != "warning":
                yield line
            continue
        if failure:
            yield failure
        level, failure = record["level"], ""
        operator = OUR_OPERATOR.match(record["rest"])
        if operator:
            yield operator["event"]
    if failure:
        yield failure


def airflow() -> str:
    """Airflow's command of this environment."""
    return str(Path(sys.executable).parent / "airflow")


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
