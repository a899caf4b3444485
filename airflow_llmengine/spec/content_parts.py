"""The parts of a chat message's content: which there are, and what each must hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_PARTS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "tool_reference": "name",
}
"""By type: parts that are text, and the field that holds it."""

MEDIA_PARTS: Mapping[str, str] = {
    "image_url": "image",
    "input_image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
"""By type: parts that only some models take, and what they hold."""

_URL_IN_AN_OBJECT = ("image_url", "audio_url", "video_url")

_UNSUPPORTED: Mapping[str, str] = {
    "file": "vLLM reads no files; give their text, or images of their pages",
    "image_embeds": "tensors are not taken; give the image itself as image_url",
    "audio_embeds": "tensors are not taken; give the sound itself as input_audio",
    "video_embeds": "tensors are not taken; give the video itself as video_url",
    "prompt_embeds": "tensors are not taken; give the text",
    "image_pil": "a record can't hold it; give image_url",
}


@dataclass(frozen=True, slots=True)
class PartFault:
    """What is wrong with a part."""

    at: str
    """The place below the part, for example ``.image_url.url``; empty for the part itself."""
    reason: str
    """What is wrong, and what to do."""
    unsupported: bool = False
    """Whether the part is right, and vLLM, or a batch, does not take it."""


def part_fault(part: Mapping[str, Any]) -> PartFault | None:
    """What is wrong with a part whose ``type`` is a string, whatever the model.

    Returns:
        None if nothing is.
    """
    kind: str = part["type"]
    if kind in TEXT_PARTS:
        field = TEXT_PARTS[kind]
        return None if isinstance(part.get(field), str) else PartFault(f".{field}", "must be a string")
    if kind in _UNSUPPORTED:
        return PartFault("", _UNSUPPORTED[kind], unsupported=True)
    if kind not in MEDIA_PARTS:
        return PartFault(".type", f"must be one of {', '.join((*TEXT_PARTS, *MEDIA_PARTS))}")
    if kind == "input_audio":
        sound = part.get("input_audio")
        held = isinstance(sound, dict) and all(isinstance(sound.get(name), str) for name in ("data", "format"))
        return None if held else PartFault(".input_audio", "must be an object with data (in base64) and format")
    if media_url(part) is None:
        shape = "an object with a url" if kind in _URL_IN_AN_OBJECT else "a URL"
        return PartFault(f".{_url_field(kind)}", f"must be {shape}")
    return _detail_fault(part)


def media_parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parts of media in a conversation, each with its path, for example ``messages[0].content[1]``."""
    for place, message in enumerate(messages):
        content = message.get("content")
        for part_place, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, Mapping) and part.get("type") in MEDIA_PARTS:
                yield f"messages[{place}].content[{part_place}]", part


def media_url(part: Mapping[str, Any]) -> str | None:
    """The URL of a part of media; None if it holds its data otherwise, or does not say."""
    held = part.get(_url_field(part["type"]))
    if part["type"] in _URL_IN_AN_OBJECT:
        held = held.get("url") if isinstance(held, dict) else None
    return held if isinstance(held, str) and part["type"] != "input_audio" else None


def _url_field(kind: str) -> str:
    return "image_url" if kind == "input_image" else kind


def _detail_fault(part: Mapping[str, Any]) -> PartFault | None:
    held = part.get("image_url")
    for at, holder in ((".image_url", held), ("", part)):
        if isinstance(holder, dict) and holder.get("detail") not in (None, "auto"):
            # vLLM would leave it aside, with a line in its log.
            reason = "the model has one resolution; leave it out, or set the processor's own by mm_processor_kwargs"
            return PartFault(f"{at}.detail", reason, unsupported=True)
    return None
