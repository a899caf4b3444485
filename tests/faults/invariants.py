"""What must hold after every stage of every run, whatever went wrong."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.storage.backend import is_temporary
from airflow_llmengine.worker.chunks import decode_results, restore_part
from airflow_llmengine.worker.elements import error_of
from tests.faults.faulty_storage import kind_of
from tests.faults.plan import Plan
from tests.faults.runner import Run, Variant, scratch_names
from tests.faults.world import Effect

IMMUTABLE = ("chunk", "part", "mark", "input", "model", "end")
"""What is created only if absent and never replaced, but for a part, by who created it, with all that was in it."""

# An object store's own code, such as InternalError, may be told, and of what an engine raised its type: its text may
# quote the prompt.
EXCEPTION = re.compile(r"(?<!store answered [0-9]{3} )(?<!failed with it \()\b\w+(Error|Exception)\b|Traceback|\[Errno")
_UNIT = re.compile(r"([0-9a-f]+-[0-9]+)/chunks/[0-9]+/([0-9]+)(?:\.(part|round|transient)-([0-9]+))?\.jsonl$")
_CLAIM = re.compile(r"([0-9a-f]+-[0-9]+)/claims/[0-9]+/([0-9]+)(?:\.(round-)?([0-9]+))?$")


def check(run: Run, when: str) -> list[str]:
    """Everything that is broken now.

    Args:
        run: The run so far.
        when: ``after the retry`` and ``at the end`` ask for more than the moments before.
    """
    run.late = 0
    broken = [*_messages(run), *_output(run), *_commits(run), *_generations(run), *_foreign(run)]
    if when == "after the retry":
        broken += _completed(run)
    return broken


def _messages(run: Run) -> list[str]:
    """What people read is a sentence, and says neither a traceback nor the name of an exception."""
    broken = []
    for attempt in run.attempts:
        if attempt.error is not None:
            broken.append(f"{attempt.name} raised {attempt.error}")
        elif attempt.outcome is not None:
            message = attempt.outcome.message
            if EXCEPTION.search(message) or len(message.split()) < 3 or "\n" in message:
                broken.append(f"{attempt.name} says: {message!r}")
            if attempt.outcome.exit_code is ExitCode.INTERNAL:
                broken.append(f"{attempt.name} failed by a defect: {message}")
    return broken


# The output


def _output(run: Run) -> list[str]:
    """The output is absent, or whole and one job's; the manifest beside it tells of it."""
    entry = run.directory.output.info()
    manifest = run.directory.read_manifest()
    if entry is None:
        return [] if manifest is None else ["a manifest stands without an output"]
    data = run.directory.output.read_bytes()
    try:
        elements = _elements(data, as_lines=run.plan.output_lines)
    except ValueError as error:
        return [f"the output is not whole: {error}"]
    variants = [run.variants[manifest.fingerprint]] if manifest is not None else list(run.variants.values())
    reasons = [_mismatch(run, elements, variant) for variant in variants]
    broken = [] if None in reasons else [f"the output is no job's: {reasons[0]}"]
    if manifest is not None:
        broken += _against_manifest(data, elements, manifest, run.plan)
    return broken


def _elements(data: bytes, *, as_lines: bool) -> list[Any]:
    if as_lines:
        if data and not data.endswith(b"\n"):
            raise ValueError("its last line has no end")
        return [json.loads(line) for line in data.split(b"\n")[:-1]]
    value = json.loads(data)
    if not isinstance(value, list):
        raise ValueError("it is no array")
    return value


def _mismatch(run: Run, elements: list[Any], variant: Variant) -> str | None:
    """Why the elements are not those of the variant's records, in their order."""
    if len(elements) != run.plan.records:
        return f"{len(elements)} elements for {run.plan.records} records"
    for index, element in enumerate(elements):
        reason = _element_mismatch(run, index, element, variant)
        if reason is not None:
            return f"element {index} {reason}: {json.dumps(element)[:300]}"
    return None


def _element_mismatch(run: Run, index: int, element: Any, variant: Variant) -> str | None:
    error = element.get("error")
    if error is not None:
        if error["index"] != index:
            return "is the error of another record"
        return _undue_error(run, index, RecordErrorType(error["type"]))
    if index in run.plan.bad:
        return "answers what is no record"
    if run.plan.input_format == "batch lines":
        if element["custom_id"] != f"c{index}":
            return "has another record's custom_id"
        element = element["response"]["body"]
    text = element["text"] if "text" in element else element["choices"][0]["text"]
    prompt = variant.prompts[index]
    same = text.startswith(prompt) if run.plan.asks_for_echo else text == prompt
    return None if same else "belongs to another record"


def _undue_error(run: Run, index: int, kind: RecordErrorType) -> str | None:
    if index in run.plan.bad:
        return None if kind in (RecordErrorType.INVALID_JSON, RecordErrorType.INVALID_RECORD) else "has a wrong error"
    faults = {fault.kind for fault in run.plan.engine if fault.record == index}
    like_it = run.plan.first_like(index)
    crashes = {fault.kind for fault in run.plan.engine if run.plan.first_like(fault.record) == like_it}
    if kind is RecordErrorType.INTERNAL and "internal" in faults:
        return None
    if kind is RecordErrorType.ENGINE_CRASH:
        # A record that was alone in the engine at two deaths, after two others over its chunk, may be at fault, for all
        # that can be told.
        due = crashes & {"kills engine", "kills process"} or run.world.kills >= 4
        return None if due else "is said to bring the engine down"
    return "has an error that it should not have"


def _against_manifest(data: bytes, elements: list[Any], manifest: Manifest, plan: Plan) -> list[str]:
    failures = Counter(element["error"]["type"] for element in elements if element.get("error") is not None)
    expected = {
        "output_bytes": len(data),
        "output_sha256": hashlib.sha256(data).hexdigest(),
        "records": len(elements),
        "failed": failures.total(),
        "succeeded": len(elements) - failures.total(),
        "truncated": 0,
        "cached": 0,
        "failures": dict(failures),
    }
    if plan.distinct is None:
        expected["repeated"] = 0
    if not plan.asks_for_echo:
        # The stand-in counts one for each.
        expected |= dict.fromkeys(("prompt_tokens", "completion_tokens"), len(elements) - failures.total())
    return [
        f"the manifest says {name} {getattr(manifest, name)}, and it is {value}"
        for name, value in expected.items()
        if getattr(manifest, name) != value
    ]


# What was committed


def _commits(run: Run) -> list[str]:
    """Nothing committed is ever replaced."""
    broken = []
    created: dict[str, Effect] = {}
    effects = list(run.world.effects)
    for effect in effects:
        kind = kind_of(effect.path)
        if effect.operation in ("delete", "delete_tree"):
            for path in [path for path in created if path == effect.path or path.startswith(f"{effect.path}/")]:
                del created[path]
        elif kind not in IMMUTABLE:
            continue
        elif kind == "part" and effect.operation == "replace":
            before = created.get(effect.path)
            if before is not None and not _is_more_of(before, effect):
                broken.append(f"{effect.attempt} put something else in the place of {effect.path}")
            created[effect.path] = effect
        elif effect.operation != "create":
            broken.append(f"{effect.attempt} made a {effect.operation} of {effect.path}, which is committed once")
        elif effect.path in created and not _may_be_gone(created[effect.path], effect, effects):
            broken.append(f"{effect.attempt} created {effect.path} over what {created[effect.path].attempt} created")
        else:
            created[effect.path] = effect
    for path, effect in created.items():
        # Deletions of several attempts may have crossed in the log; what is there must be what was created.
        location = run.storage.location(run.directory.output._backend()[0].prefix + path)
        if location.exists() and location.read_bytes() != effect.data:
            broken.append(f"{path} is not what {effect.attempt} created")
    return broken


def _is_more_of(part: Effect, later: Effect) -> bool:
    """Whether a part was replaced by who wrote it, and with all that was in it."""
    return part.attempt == later.attempt and restore_part(part.data).items() <= restore_part(later.data).items()


def _may_be_gone(first: Effect, second: Effect, effects: list[Effect]) -> bool:
    """Whether what was created first may have been deleted when it was created again; a deletion takes its time."""
    return first.ended >= second.began or any(
        effect.operation in ("delete", "delete_tree")
        and (first.path == effect.path or first.path.startswith(f"{effect.path}/"))
        and first.began <= effect.ended
        and effect.began <= second.ended
        for effect in effects
    )


def _generations(run: Run) -> list[str]:
    """Nothing that was committed before an attempt took a chunk is generated again by it."""
    committed, claims = _units(run.world.effects)
    scratches = scratch_names(run.world)
    lagging = any(attempt.listing_lag for stage in run.plan.stages for attempt in stage.attempts)
    succeeded = _successes(run)
    broken = []
    for generation in list(run.world.generations):
        scratch = scratches.get(generation.attempt)
        if scratch is None:
            broken.append(f"{generation.attempt} generated record {generation.record} without any claim")
            continue
        if generation.began > succeeded.get(scratch, float("inf")):
            # Launched before the job was done, and at work after its scratch was gone: it costs money and no more.
            run.late += generation.answered
            continue
        held = {
            chunk: moments
            for (name, folder, chunk), moments in claims.items()
            if name == generation.attempt and folder == scratch
        }
        for effect, kind, chunk, number, errors in committed.get((scratch, generation.record), ()):
            if effect.ended > generation.began or chunk not in held:
                continue
            if effect.ended > min(began for round_number, began in held[chunk]):
                continue
            transient = errors.get(generation.record)
            if transient or (kind == "part" and lagging):
                continue
            broken.append(
                f"{generation.attempt} generated record {generation.record} of chunk {chunk} again, which "
                f"{effect.attempt} had committed before ({kind} {number})"
            )
    return broken


def _successes(run: Run) -> dict[str, float]:
    """By generation: when its manifest stood."""
    found: dict[str, float] = {}
    for effect in list(run.world.effects):
        if effect.operation == "replace" and kind_of(effect.path) == "manifest":
            found.setdefault(Manifest.model_validate_json(effect.data).handle.scratch_name, effect.began)
    return found


def _units(
    effects: list[Effect],
) -> tuple[
    dict[tuple[str, int], list[tuple[Effect, str, int, int, dict[int, bool]]]],
    dict[tuple[str, str, int], list[tuple[int, float]]],
]:
    """What was committed, by generation and record; and claims, by attempt, generation and chunk."""
    committed: dict[tuple[str, int], list[tuple[Effect, str, int, int, dict[int, bool]]]] = defaultdict(list)
    claims: dict[tuple[str, str, int], list[tuple[int, float]]] = defaultdict(list)
    for effect in list(effects):
        if effect.operation != "create" and (kind_of(effect.path), effect.operation) != ("part", "replace"):
            continue
        claim = _CLAIM.search(effect.path)
        if claim is not None:
            round_number = int(claim.group(4)) if claim.group(3) else 0
            claims[effect.attempt, claim.group(1), int(claim.group(2))].append((round_number, effect.began))
            continue
        unit = _UNIT.search(effect.path)
        if unit is None or unit.group(3) == "transient":
            continue
        header, elements = decode_results(effect.data)
        indices = header.indices or list(range(header.first, header.first + header.records))
        errors = {
            index: (error := error_of_any(element)) is not None and error.transient
            for index, element in zip(indices, elements, strict=True)
        }
        for index in indices:
            committed[unit.group(1), index].append(
                (effect, unit.group(3) or "chunk", header.chunk, int(unit.group(4) or 0), errors)
            )
    return committed, claims


def error_of_any(element: bytes) -> RecordErrorType | None:
    """The type of an element's error, if it is one."""
    error = error_of(element)
    return None if error is None else error.type


# What lies about


def _foreign(run: Run) -> list[str]:
    """Nothing lies in the folder but what the layout names."""
    expected = {"source", "output", "manifest", "current", "cancel", "job", "input", "model", "end"}
    expected |= {"claim", "heartbeat", "chunk", "part", "mark"}
    broken = []
    for path in _all_paths(run):
        name = path.rpartition("/")[2]
        if is_temporary(name):
            # Whoever was killed over a write could not tidy up, nor could who was refused by the store; who is frozen
            # over one will, once it wakes.
            frozen = any(attempt.process.is_frozen for attempt in run.attempts)
            if not run.world.kills and not run.world.fired_at and not frozen:
                broken.append(f"{path} was left by a writer though none was killed")
        elif kind_of(path) not in expected or _kind_is_misplaced(run, path):
            broken.append(f"{path} is foreign")
    return broken


def _all_paths(run: Run) -> list[str]:
    if not run.folder.startswith("/"):
        return [entry.url for entry in run.storage.location(run.folder).walk()]
    return [str(path) for path in Path(run.folder).rglob("*") if path.is_file()]


def _kind_is_misplaced(run: Run, path: str) -> bool:
    inside = path.removeprefix(run.folder).lstrip("/")
    output = run.output.rpartition("/")[2]
    if "/" not in inside:
        return inside not in ("input.json", output, f"{output}.manifest.json")
    job, _, rest = inside.partition("/")
    scratch, _, below = rest.partition("/")
    if job != f"{output}.job":
        return True
    if not below:
        return scratch not in ("current.json", "cancel.json")
    if scratch.rpartition("-")[0] not in run.variants:
        return True
    return not re.fullmatch(
        r"(job|input|model|end)\.json|replicas/[0-9]+\.json|claims/[0-9]{3}/[0-9]{8}(\.(round-)?[0-9]+)?"
        r"|chunks/[0-9]{3}/[0-9]{8}(\.(part|round|transient)-[0-9]+)?\.jsonl",
        below,
    )


# The plain retry


def _completed(run: Run) -> list[str]:
    """After a plain retry the job is done, and its scratch is gone."""
    assert run.last is not None
    outcome = run.last.outcome
    if outcome is not None and outcome.exit_code is ExitCode.TOO_MANY_FAILED_RECORDS and not _has_good_record(run):
        return [] if run.directory.output.info() is None or run.variants else ["an output of a failed job stands"]
    if outcome is None or outcome.exit_code is not ExitCode.DONE:
        return [f"the plain retry failed: {run.last.ended}"]
    manifest = run.directory.valid_manifest()
    if manifest is None:
        return ["the plain retry is done, and no valid manifest stands"]
    scratch = run.directory.scratch(manifest.handle)
    left = [entry.url for entry in scratch.root.walk()]
    # A scratch that could not be deleted costs room and not the job, as what a zombie writes.
    excused = any(operation in ("delete", "any") for operation, _ in run.world.fired_at) or any(
        a.process.is_frozen for a in run.attempts
    )
    done = _successes(run).get(manifest.handle.scratch_name, 0.0)
    written_late = {effect.path for effect in run.world.effects if effect.data and effect.began > done}
    if excused or _died_at_the_end(run, manifest):
        return []
    left = [url for url in left if not any(url.endswith(path) for path in written_late)]
    if left:
        return [f"scratch is left after success: {left[:5]}"]
    return []


def _has_good_record(run: Run) -> bool:
    never = {fault.record for fault in run.plan.engine if fault.times > 3 and fault.kind != "slow"}
    return bool(set(range(run.plan.records)) - run.plan.bad - never)


def _died_at_the_end(run: Run, manifest: Manifest) -> bool:
    """Whether whoever collected the job was killed after its manifest stood, before its scratch was gone."""
    writers = [
        effect.attempt
        for effect in run.world.effects
        if kind_of(effect.path) == "manifest" and effect.operation == "replace"
    ]
    killed = {attempt.name for attempt in run.attempts if attempt.process.is_killed}
    return bool(writers) and writers[-1] in killed
