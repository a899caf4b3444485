"""Records of many kinds, made by a seeded generator: what one job may hold, and what the same is over vLLM's API."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

TEXTS = (
    "The capital of France is",
    "Once upon a time there was a clockmaker who",
    "Die Hauptstadt von Italien ist",
    "Le plus haut sommet des Alpes est",
    "El río más largo de España es",
    "東京は",
    "Москва — это",
    "مرحبا، كيف",
    "🙂🚀 Emoji of today: 🌧️ 🌧️ 👩‍🚀",
    "naïve café, e\u0301 and é, \u2028 a line's end, \ttabs",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "SELECT name, count(*) FROM trains\nGROUP BY",
    '{"city": "Oslo", "country":',
    "1, 2, 3, 5, 8, 13,",
    "one two three one two three one two three",
    "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n",
    "{{ 7*7 }} {% raw %} is a",
    "Q: How many legs has a spider?\nA:",
    "a",
)
QUESTIONS = (
    "What is the capital of France?",
    "Nenne drei Farben.",
    "¿Cuál es la capital de Perú?",
    "空はなぜ青いのですか。",
    "Say 🙂 and nothing else.",
    "Write a function in Python that adds two numbers.",
    "Which is larger, 9 or 11?",
)
SYSTEMS = ("You are a terse clerk.", "Answer in German.", "You are a pirate. 🏴‍☠️")
WORDS = (" the", ".", ",", "\n", " is", "e", " and")
VOCABULARY = 49_000
"""Token ids below this are words of the quickstart's model."""


class Generator:
    """Makes records; the same seed makes the same.

    Args:
        seed: The seed.
        greedy: Whether every record decodes greedily. Otherwise some leave the temperature to the model's own
            generation config, with a seed.
    """

    def __init__(self, seed: int, *, greedy: bool) -> None:
        self._random = random.Random(seed)
        self._greedy = greedy

    def records(self, completions: int, chats: int) -> list[Json]:
        """Records of both kinds, mixed; each field stands in many, and rare ones in a few at least."""
        kinds: list[Callable[[], Json]] = [self._completion] * completions + [self._chat] * chats
        self._random.shuffle(kinds)
        return [make() for make in kinds]

    def contents(self, count: int, prompts: int) -> list[Json]:
        """V1 contents; the fields differ between them."""
        return [self._content(prompts, place) for place in range(count)]

    def _often(self) -> bool:
        return self._random.random() < 0.3

    def _seldom(self) -> bool:
        return self._random.random() < 0.12

    def _text(self) -> str:
        pick = self._random
        text = pick.choice(TEXTS)
        if self._seldom():
            text = " ".join(pick.choices(TEXTS, k=pick.randint(3, 7)))
        # So that few are the same.
        return f"{pick.randint(0, 999)}. {text}" if pick.random() < 0.7 else text

    def _ids(self) -> list[int]:
        return self._random.choices(range(20, VOCABULARY), k=self._random.randint(1, 12))

    def _completion(self) -> Json:
        pick = self._random
        prompts: list[Callable[[], Any]] = [
            lambda: [self._text() for _ in range(pick.randint(1, 3))],
            self._ids,
            lambda: [self._ids() for _ in range(pick.randint(1, 2))],
        ]
        record: Json = {"prompt": pick.choice(prompts)() if self._often() else self._text(), **self._sampling()}
        if pick.random() < 0.85:
            # Otherwise it is the API's default, or the generation config's if that is less.
            record["max_tokens"] = pick.randint(1, 14)
        if self._often():
            record["logprobs"] = pick.randint(0, 5)
        if self._seldom():
            record["echo"] = True
            if self._often():
                record["max_tokens"] = 0
                record.pop("min_tokens", None)
        if self._seldom():
            record["add_special_tokens"] = pick.choice([True, False])
        if self._seldom():
            record["logit_bias"] = self._bias(int)
        return self._with_room(record)

    def _chat(self) -> Json:
        pick = self._random
        messages = [{"role": "user", "content": pick.choice(QUESTIONS)}]
        if self._often():
            messages.insert(0, {"role": "system", "content": pick.choice(SYSTEMS)})
        if self._often():
            turn = [{"role": "assistant", "content": pick.choice(TEXTS)}, {"role": "user", "content": self._text()}]
            messages += turn
        record: Json = {"messages": messages, **self._sampling()}
        if pick.random() < 0.8:
            record[pick.choice(["max_tokens", "max_completion_tokens"])] = pick.randint(2, 14)
        else:
            # Otherwise it goes on until the model ends it, or its generation config.
            record |= {"stop": ["."]} if not self._greedy else {"max_tokens": 16}
        if self._often():
            record["logprobs"] = True
            if pick.random() < 0.7:
                record["top_logprobs"] = pick.randint(0, 5)
        if self._seldom():
            record["logit_bias"] = self._bias(float)
        if self._seldom():
            record |= {"continue_final_message": True, "add_generation_prompt": False}
            record["messages"] = [*messages, {"role": "assistant", "content": "Well, I"}]
            if self._often():
                record["echo"] = True
        elif self._seldom():
            record["add_generation_prompt"] = False
        if self._seldom():
            content = record["messages"][-1]["content"]
            record["messages"][-1]["content"] = [{"type": "text", "text": content}]
        if self._seldom():
            record["add_special_tokens"] = pick.choice([True, False])
        return self._with_room(record)

    def _sampling(self) -> Json:
        pick = self._random
        record: Json = {}
        if self._greedy or self._often():
            record["temperature"] = 0
        else:
            record["seed"] = pick.randint(0, 2**31)
            if self._often():
                record["temperature"] = pick.choice([0.3, 0.8, 1, 1.5])
            if self._often():
                record["n"] = pick.randint(1, 3)
        choices: Json = {
            "top_k": lambda: pick.choice([-1, 1, 5, 50]),
            "top_p": lambda: pick.choice([0.1, 0.5, 0.95, 1]),
            "min_p": lambda: pick.choice([0, 0.05, 0.2]),
            "presence_penalty": lambda: pick.choice([-1, 0, 0.5, 2]),
            "frequency_penalty": lambda: pick.choice([-0.5, 0, 0.25, 1.5]),
            "repetition_penalty": lambda: pick.choice([1, 1.1, 1.5]),
            "stop": lambda: pick.choice(WORDS) if self._often() else pick.sample(WORDS, k=pick.randint(1, 4)),
            "include_stop_str_in_output": lambda: True,
            "stop_token_ids": lambda: pick.choices(range(20, 400), k=40),
            "ignore_eos": lambda: True,
            "min_tokens": lambda: pick.randint(0, 12),
            "skip_special_tokens": lambda: pick.choice([True, False]),
            "spaces_between_special_tokens": lambda: pick.choice([True, False]),
            "user": lambda: f"user {pick.randint(0, 99)}",
            "best_of": lambda: record.get("n", 1),
            "stream": lambda: False,
            "use_beam_search": lambda: False,
            "response_format": lambda: {"type": "text"},
        }
        return record | {name: value() for name, value in choices.items() if self._seldom()}

    def _bias(self, kind: type[int | float]) -> Json:
        pick = self._random
        return {str(pick.randint(20, 2_000)): kind(pick.choice([-100, -5, 3, 100])) for _ in range(pick.randint(1, 30))}

    @staticmethod
    def _with_room(record: Json) -> Json:
        """The record, with no more ``min_tokens`` than it may have at most."""
        most = record.get("max_tokens", record.get("max_completion_tokens", 10))
        if "min_tokens" in record:
            record["min_tokens"] = min(record["min_tokens"], most)
        return record

    def _content(self, prompts: int, place: int) -> Json:
        pick = self._random
        content: Json = {
            "prompts": [self._text() for _ in range(prompts)],
            "max_new_tokens": pick.randint(10, 16),
            "temperature": 0,
            "return_token_log_probs": place % 2 == 0,
        }
        fields: Json = {
            "stop_sequences": pick.sample(WORDS, k=2),
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
            "top_k": 5,
            "top_p": 0.9,
            "skip_special_tokens": False,
        }
        # None of them in the first, so that what is not given is the model's own.
        return content | {name: fields[name] for name in fields if place and self._often()}


_CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
_WEATHER = {"type": "function", "function": {"name": "weather", "parameters": _CITY}}
_IN_OSLO = [{"role": "user", "content": "What is the weather in Oslo?"}]
_GREEDY: Json = {"temperature": 0, "max_tokens": 24}

SPECIAL: tuple[Json, ...] = (
    {"prompt": "Rome is in Italy, and Oslo is in", "guided_choice": ["Norway", "Sweden", "Italy"], **_GREEDY},
    {"prompt": "The year was", "guided_regex": " 1[0-9]{3}", **_GREEDY},
    {"prompt": "In JSON:", "guided_json": _CITY, **_GREEDY},
    {"prompt": "Is it so?", "guided_grammar": 'root ::= " yes" | " no"', **_GREEDY},
    {"messages": _IN_OSLO, "guided_choice": ["It is warm", "It is cold"], **_GREEDY},
    {
        "messages": _IN_OSLO,
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": _CITY, "strict": True}},
        **_GREEDY,
    },
    {"prompt": "{", "response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 5},
    {
        "messages": _IN_OSLO,
        "tools": [_WEATHER],
        "tool_choice": "none",
        "chat_template": "{{ tools[0].function.name }}? {{ messages[0].content }}",
        "temperature": 0,
        "max_tokens": 8,
    },
    {
        "messages": _IN_OSLO,
        "tools": [_WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "temperature": 0,
        "max_tokens": 60,
    },
    {"prompt": "The first month is", "use_beam_search": True, "n": 2, "temperature": 0, "max_tokens": 6},
    {
        "prompt": ["A week has", "A year has"],
        "use_beam_search": True,
        "best_of": 2,
        "n": 2,
        "length_penalty": 0.5,
        "temperature": 0,
        "max_tokens": 5,
    },
    {
        "messages": [
            {"role": "user", "content": "What is the weather in Oslo?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "one", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "one", "content": "cold"},
        ],
        "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content or m.tool_calls }}\n{% endfor %}{{ end }}",
        "chat_template_kwargs": {"end": "assistant:"},
        "return_token_ids": True,
        "temperature": 0,
        "max_tokens": 8,
    },
    {"messages": _IN_OSLO, "bad_words": ["The"], "prompt_logprobs": 1, "temperature": 0, "max_tokens": 4},
)
"""Structure, tools, beams, and a template of the record's own."""

REFUSED: tuple[Json, ...] = (
    {"prompt": "word " * 6_000},
    {"messages": [{"role": "user", "content": "word " * 6_000}]},
    {"prompt": [5] * 100, "max_tokens": 1, "logit_bias": {"1000000": 1}},
    {"prompt": [1_000_000]},
    {"prompt": "two of the likeliest", "n": 2, "temperature": 0},
    {"prompt": "no such share", "top_p": 0},
    {"prompt": "never", "min_tokens": 9, "max_tokens": 3},
    {"prompt": "less than none", "min_p": -0.5},
    {
        "messages": [{"role": "user", "content": "Open, or go on?"}],
        "continue_final_message": True,
        "add_generation_prompt": True,
    },
)
"""Records that vLLM refuses."""


def api_request(record: Json) -> tuple[str, Json]:
    """The URL and the body by which vLLM's server is asked for the same."""
    names = {f"guided_{kind}": kind for kind in ("choice", "grammar", "json", "regex")}
    body = {name: value for name, value in record.items() if name not in names}
    structure = {names[name]: record[name] for name in names.keys() & record.keys()}
    if structure:
        body["structured_outputs"] = structure
    return CHAT if "messages" in record else COMPLETIONS, body


def api_requests_of_content(content: Json) -> list[Json]:
    """The bodies of the completion requests that mean the same as a V1 content, in the order of its prompts."""
    names = {"max_new_tokens": "max_tokens", "stop_sequences": "stop"}
    shared = {
        names.get(name, name): value
        for name, value in content.items()
        if name not in ("prompts", "return_token_log_probs")
    }
    if content["return_token_log_probs"]:
        shared["logprobs"] = 0
    return [{**shared, "prompt": prompt} for prompt in content["prompts"]]
