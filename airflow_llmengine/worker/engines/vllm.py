"""The vLLM engine: vLLM in this process, behind the objects with which it serves its own API.

This is the one module that touches vLLM. It drives what ``vllm serve`` and vLLM's batch runner are built on: the parser
of their arguments, the asynchronous engine client, and the serving objects that ``init_app_state`` makes. Records then
behave as they would over HTTP, and that call is the seam that holds between versions.

vLLM's engine is a process of its own, and imports the program's main module when it starts: that must be guarded by
``if __name__ == "__main__":``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.base import Answer, EngineDiedError, EngineStep, PrefixCache
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.engines.processes import available_memory
from airflow_llmengine.worker.engines.spanning import NodePlace
from airflow_llmengine.worker.engines.vllm_argument_names import unknown_arguments
from airflow_llmengine.worker.engines.vllm_arguments import (
    command_line,
    engine_arguments,
    node_arguments,
    served_name,
    with_further_arguments,
)
from airflow_llmengine.worker.engines.vllm_candidates import Candidates, EngineSampling
from airflow_llmengine.worker.engines.vllm_chat import ChatAbilities, finish_chat
from airflow_llmengine.worker.engines.vllm_environment import CPU_DISTRIBUTION, installed_vllm, prepare_environment
from airflow_llmengine.worker.engines.vllm_faults import NO_CHAT_TEMPLATE, fault_of, fault_of_fields, rejection
from airflow_llmengine.worker.engines.vllm_follower import Following
from airflow_llmengine.worker.engines.vllm_loading import Loaded, Loading
from airflow_llmengine.worker.engines.vllm_pooling import Pooling, RequestForm
from airflow_llmengine.worker.engines.vllm_pooling_records import generates_nothing, pooling_answer, too_long
from airflow_llmengine.worker.engines.vllm_records import (
    chat_request,
    completion_request,
    v1_answer,
    v2_answer,
)
from airflow_llmengine.worker.engines.vllm_steps import StepTeller
from airflow_llmengine.worker.engines.vllm_structure import STRUCTURE_LIBRARY, require_followed
from airflow_llmengine.worker.engines.vllm_writing import VLLMWriter
from airflow_llmengine.worker.engines.writing import Writer
from airflow_llmengine.worker.records import PromptRecord, Record
from airflow_llmengine.worker.weights.model_files import ModelFiles
from airflow_llmengine.worker.weights.model_source import ModelFinder, ModelSource

logger = logging.getLogger(__name__)

CPU_KV_CACHE_SHARE = 4
"""Without a GPU, the KV cache takes one part in so many of the memory that is free at the start; at least 1 GiB."""

GIB = 2**30

_TEMPLATE_CHARACTERS = frozenset("{}\n")
"""A chat template without any of these is a text of one line, the same for every chat."""


class VLLMEngine:
    """Answers records with vLLM. Not started before ``start``: until then vLLM is not even imported."""

    name = "vllm"

    def __init__(self, request: CreateBatchCompletionsV1Request) -> None:
        self._distribution, self.version = installed_vllm()
        self._request = request
        self._model = served_name(request.model_cfg)
        self._find: ModelFinder = ModelFiles(Storage(), request).find
        self._further: Mapping[str, Any] = {}
        self._place: NodePlace | None = None
        self._why_a_template: Callable[[], str | None] | None = None
        self._observer: Callable[[EngineStep], None] | None = None
        self._loading: Loading | None = None
        self._following: Following | None = None
        self._identity: str | None = None
        self._serving: _Serving | None = None

    def load_from(self, find: ModelFinder) -> None:
        """Load what ``find`` gives; by default a model that needs no options of storage."""
        self._find = find

    def take_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Be given further arguments of vLLM.

        Raises:
            EngineUnavailableError: The installed version has no such argument.
        """
        unknown = unknown_arguments(arguments, self.version)
        if unknown:
            raise EngineUnavailableError("; ".join(unknown))
        self._further = arguments

    def require_chat_template(self, why: Callable[[], str | None]) -> None:
        """Refuse a model without a chat template when it is started; see ``RendersChats``."""
        self._why_a_template = why

    def tell_steps(self, observer: Callable[[EngineStep], None]) -> None:
        """Have vLLM count, which costs it a little; see ``TellsSteps``."""
        self._observer = observer

    def place(self, place: NodePlace) -> None:
        """Span several nodes."""
        self._place = place

    async def start(self) -> None:
        """Load the model; the loop stays free meanwhile.

        Raises:
            ModelNotFoundError: There is no such model; found out before vLLM is even imported.
            ModelChangedError: Its weights are not those that the job began with.
            StorageError: They can't be fetched.
            EngineUnavailableError: vLLM refuses the settings; the same settings will be refused again.
            EngineDiedError: It failed otherwise.
        """
        arguments = await self._prepared()
        logger.info("loading %s with vLLM %s", self._model, self.version)
        with tempfile.TemporaryDirectory(prefix="llmengine-") as folder:
            if not _TEMPLATE_CHARACTERS & set(arguments.get("chat_template", "{")):
                # vLLM would take it for the name of a file; any other it takes letter for letter.
                template = Path(folder) / "chat_template.jinja"
                template.write_text(arguments["chat_template"])
                arguments["chat_template"] = str(template)
            self._loading = Loading(lambda: _load(arguments, self._why_a_template, self._observer))
            loaded = await self._loading.result()
            self._serving = await _serve(loaded)
        config = loaded.client.vllm_config
        logger.info(
            "vLLM runs up to %d sequences of at most %d tokens at once, and caches %d tokens",
            config.scheduler_config.max_num_seqs,
            config.model_config.max_model_len,
            (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size,
        )

    async def follow(self) -> None:
        """Compute for the engine of the first node; returns when that can't go on."""
        arguments = await self._prepared()
        # Records are rendered where they are read.
        arguments.pop("chat_template", None)
        self._following = Following(lambda: _configured(arguments, headless=True)[1])
        await self._following.result()

    async def _prepared(self) -> dict[str, Any]:
        """The arguments for this node, with the model's files here, and what vLLM reads from the environment set."""
        source = await asyncio.to_thread(self._find)
        arguments = _arguments(self._request, source, self._place, self._further)
        self._identity = source.identity
        prepare_environment(arguments, source, quiet=self._distribution == CPU_DISTRIBUTION)
        if self._place is not None:
            # It would ask its routes, and there may be none that leads out.
            os.environ.setdefault("VLLM_HOST_IP", self._place.address)
        return arguments

    @property
    def model_identity(self) -> str | None:
        """The hub's commit, or a digest of the checkpoint: see ``ModelSource``."""
        return self._identity

    @property
    def capacity(self) -> int:
        """The ``max_num_seqs`` of vLLM."""
        return int(self._started().client.vllm_config.scheduler_config.max_num_seqs)

    def prefix_cache(self) -> PrefixCache | None:
        """The KV cache, unless vLLM keeps nothing of finished prompts (``enable_prefix_caching``)."""
        config = self._started().client.vllm_config.cache_config
        if not config.enable_prefix_caching or not config.num_gpu_blocks:
            return None
        return PrefixCache(tokens=config.num_gpu_blocks * config.block_size, block_tokens=config.block_size)

    async def complete(self, record: Record) -> Answer:
        """Answer one record. Cancelling the call aborts it in vLLM.

        Raises:
            RecordRejectedError: For a fault of the record.
            EngineDiedError: vLLM's engine is gone.
        """
        serving = self._started()
        request = record.request
        if isinstance(request, PoolingFields):
            return await self._pool(request)
        if serving.completion is None:
            raise generates_nothing(serving.pooling.tasks)
        if isinstance(request, ChatCompletionV2Request):
            body = chat_request(request, self._model, serving.chat_request.model_fields)
            serving.chat_abilities.require(body, partial(serving.template, body))
            answer = serving.answer_chat
        else:
            body = completion_request(request, self._model, serving.completion_request.model_fields)
            if self._request.model_cfg.skip_tokenizer_init:
                # The text is empty: there is nothing else to tell an answer by.
                body["return_token_ids"] = True
            answer = serving.answer_completion
        candidates = None
        if isinstance(request, CompletionV2Request | ChatCompletionV2Request):
            require_followed(request, serving.client.vllm_config.structured_outputs_config.backend)
            candidates = Candidates.of(request, serving.sampling)
        if candidates is not None:
            body = candidates.asked(body)
        dumped = await serving.answered(answer, body)
        if isinstance(request, PromptRecord):
            return v1_answer(dumped, with_tokens=bool(request.content.return_token_log_probs))
        if candidates is not None:
            candidates.keep(dumped)
        if isinstance(request, ChatCompletionV2Request):
            finish_chat(dumped, request)
        return v2_answer(dumped, request)

    def writer(self) -> Writer:
        """Writes V1 records in several goes; see ``WritesOn``."""
        serving = self._started()
        if serving.completion is None:
            raise generates_nothing(serving.pooling.tasks)
        return VLLMWriter(
            answer=partial(serving.answered, serving.answer_completion),
            tokenizer=serving.client.get_tokenizer(),
            context_length=int(serving.client.model_config.max_model_len),
            model=self._model,
            known=serving.completion_request.model_fields,
        )

    async def _pool(self, request: PoolingFields) -> Answer:
        serving = self._started()
        body = serving.pooling.body(request, self._model)
        try:
            response = await serving.pooling.answer(request, body)
        except Exception as error:  # noqa: BLE001 - as in ``complete``
            fault = error
        else:
            return pooling_answer(response, request)
        raise await serving.refusal(fault, body)

    async def stop(self) -> None:
        """End vLLM and its processes, also while it still loads."""
        loading, serving, following = self._loading, self._serving, self._following
        self._loading = self._serving = self._following = None
        if serving is not None and serving.client.output_handler is not None:
            # It would take the end of the engine for an accident.
            serving.client.output_handler.cancel()
        if loading is not None:
            await asyncio.to_thread(loading.end)
        if following is not None:
            await asyncio.to_thread(following.end)

    def _started(self) -> _Serving:
        if self._serving is None:
            raise EngineDiedError("vLLM is not running")
        return self._serving


def _arguments(
    request: CreateBatchCompletionsV1Request,
    source: ModelSource,
    place: NodePlace | None = None,
    further: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    try:
        arguments = with_further_arguments(engine_arguments(request.model_cfg, source), further or {})
        if place is not None:
            arguments |= node_arguments(request, place)
    except ValueError as error:
        raise EngineUnavailableError(str(error)) from error
    # The worker reports progress itself; vLLM's statistics and progress bars would only cost time and lines.
    return {**arguments, "disable_log_stats": True, "use_tqdm_on_load": False}


def _configured(arguments: Mapping[str, Any], *, headless: bool = False) -> tuple[Any, Any]:
    """``_configure``, with its failures as what they mean."""
    try:
        return _configure(arguments, headless=headless)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise EngineUnavailableError(f"vLLM refuses the settings of the engine: {_first_line(error)}") from error
    except ImportError as error:
        raise EngineUnavailableError(
            f"vLLM can't be imported: {_first_line(error)}; where torchvision, torchaudio or torchcodec do not match "
            "torch, uninstall them: text models don't need them"
        ) from error
    except Exception as error:
        raise EngineDiedError(f"vLLM could not be set up: {type(error).__name__}: {_first_line(error)}") from error


def _load(
    arguments: Mapping[str, Any],
    why_a_template: Callable[[], str | None] | None = None,
    observer: Callable[[EngineStep], None] | None = None,
) -> Loaded:
    parsed, config = _configured(arguments)
    if why_a_template is not None and _lacks_chat_template(parsed, config.model_config):
        why = why_a_template()
        if why is not None:
            raise EngineUnavailableError(f"{why}, and {NO_CHAT_TEMPLATE}")
    if not logging.getLogger("vllm").isEnabledFor(logging.DEBUG):
        # What it has to say about a single record, it says with the record's words; the record's error tells it.
        logging.getLogger("vllm.renderers").setLevel(logging.CRITICAL)
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        client = AsyncLLM.from_vllm_config(
            vllm_config=config,
            usage_context=UsageContext.LLM_CLASS,
            enable_log_requests=parsed.enable_log_requests,
            disable_log_stats=parsed.disable_log_stats,
            stat_loggers=None if observer is None else [partial(StepTeller, observer)],
        )
    except EngineUnavailableError:
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        # Raised in this process, so by what reads the settings: the tokenizer's, for example.
        raise EngineUnavailableError(f"vLLM refuses the settings of the engine: {_first_line(error)}") from error
    except Exception as error:
        raise EngineDiedError(
            f"vLLM's engine did not start, and its own log lines say why: {_first_line(error)}"
        ) from error
    return Loaded(client, parsed)


def _lacks_chat_template(parsed: Any, model: Any) -> bool:
    """Whether vLLM will find no template for this model's chats."""
    from vllm.renderers.hf import HfRenderer, resolve_chat_template
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import cached_tokenizer_from_config, tokenizer_args_from_config

    if parsed.chat_template or model.skip_tokenizer_init or _has_a_form_of_its_own(model):
        return False
    if RENDERER_REGISTRY.load_renderer_cls(tokenizer_args_from_config(model)[0]) is not HfRenderer:
        return False
    try:
        tokenizer = cached_tokenizer_from_config(model)
    except Exception:  # noqa: BLE001 - the engine itself says at once what is wrong with it
        return False
    # Some have one only for chats with tools.
    for_tools: tuple[Any, ...] = (None, [{}])
    return all(resolve_chat_template(tokenizer, None, tools, model_config=model) is None for tools in for_tools)


def _has_a_form_of_its_own(model: Any) -> bool:
    """Whether vLLM writes and reads this model's chats without a template."""
    return bool(model.hf_config.model_type == "gpt_oss")


def _configure(arguments: Mapping[str, Any], *, headless: bool = False) -> tuple[Any, Any]:
    """Parse the arguments as ``vllm serve`` does, and resolve them with the model's config; quick, no weights."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    if current_platform.is_cpu() and "gpu_memory_utilization" not in arguments:
        # vLLM's own default is nearly all of the machine's memory.
        space = max(1, available_memory() // CPU_KV_CACHE_SHARE // GIB)
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(space))
    parser = make_arg_parser(FlexibleArgumentParser())
    parser.error = _refuse_arguments
    parsed = parser.parse_args(command_line(arguments))
    validate_parsed_serve_args(parsed)
    _refuse_unknown_parsers(parsed)
    if parsed.kv_offloading_size and current_platform.is_cpu():
        raise ValueError("model_config.swap_space is memory for each GPU, and there is none here; leave it out")
    # As what vLLM is used decides how large its batches are by default. Those of its offline class are made for
    # throughput; its batch runner has none of its own, and gets very small ones.
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config(
        usage_context=UsageContext.LLM_CLASS, headless=headless
    )
    if config.structured_outputs_config.backend == "auto" and config.model_config.tokenizer_mode != "mistral":
        # Mistral's own tokenizer has tool calls that only vLLM's own choice knows.
        config.structured_outputs_config.backend = STRUCTURE_LIBRARY
    if config.model_config.multimodal_config is None:
        # vLLM would not even look at them.
        for name in ("limit_mm_per_prompt", "mm_processor_kwargs"):
            if arguments.get(name):
                raise ValueError(f"model_config.{name} has no effect: the model takes text only; leave it out")
    return parsed, config


def _refuse_unknown_parsers(parsed: Any) -> None:
    """Load the parsers that come as plugins, as vLLM's server does, and refuse a parser that there is not."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    if parsed.tool_parser_plugin:
        ToolParserManager.import_tool_parser(parsed.tool_parser_plugin)
    if parsed.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(parsed.reasoning_parser_plugin)
    for where, name, known in (
        ("model_config.tool_call_parser", parsed.tool_call_parser, ToolParserManager.list_registered()),
        ("engine_args.reasoning_parser", parsed.reasoning_parser, ReasoningParserManager.list_registered()),
    ):
        if name and name not in known:
            raise ValueError(f"{where}: there is no {name!r}; vLLM has {', '.join(sorted(known))}")


def _refuse_arguments(message: str) -> None:
    raise ValueError(message)


def _first_line(error: BaseException) -> str:
    """What an error says, without pydantic's header and the lines that follow."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        return "; ".join(
            str(line["msg"]) for line in errors(include_url=False, include_input=False, include_context=False)
        )
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True, slots=True)
class _Serving:
    """vLLM's serving objects, and the classes that go with them."""

    client: Any
    completion: Any
    """None, like ``chat``, if the model generates no text."""
    chat: Any
    chat_abilities: ChatAbilities
    template: Callable[[Mapping[str, Any]], str | None]
    """Finds the chat template for a request; None where vLLM writes such chats otherwise."""
    pooling: Pooling
    tokenization: Any
    completion_request: Any
    chat_request: Any
    error_response: Any
    sampling: EngineSampling
    to_response: Any
    """From an exception to the error response of vLLM's server."""
    tokenize_chat: Any
    tokenize_completion: Any

    async def answer_completion(self, body: Mapping[str, Any]) -> Any:
        """Answer with vLLM's response object, or its error response; raises what vLLM raises."""
        return await self.completion.create_completion(self.completion_request.model_validate(body))

    async def answer_chat(self, body: Mapping[str, Any]) -> Any:
        """See ``answer_completion``."""
        return await self.chat.create_chat_completion(self.chat_request.model_validate(body))

    async def answered(
        self, answer: Callable[[Mapping[str, Any]], Awaitable[Any]], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The response object that ``answer`` gives, dumped without nulls; raises what its error means."""
        try:
            response = await answer(body)
        except Exception as error:  # noqa: BLE001 - vLLM raises what it likes, and the fault's kind is found out below
            fault: Any = error
        else:
            if not isinstance(response, self.error_response):
                dumped: dict[str, Any] = response.model_dump(mode="json", exclude_none=True)
                return dumped
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # vLLM takes the cancellation for a client that has hung up, and answers.
                raise asyncio.CancelledError
            fault = response
        raise await self.refusal(fault, body)

    async def refusal(self, error: Any, body: Mapping[str, Any]) -> Exception:
        """What an exception of vLLM's, or its error response, means for the record that was asked as ``body``."""
        # Not by isinstance: where vLLM keeps its exceptions changes more often than what it calls them.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if self.client.errored or "EngineDeadError" in kinds:
            return EngineDiedError("vLLM's engine process has ended, and its own log lines say why")
        if isinstance(error, ValidationError):
            return rejection(fault_of_fields(error), body)
        info = (self.to_response(error) if isinstance(error, Exception) else error).error
        fault = fault_of(kinds, info.message, info.code)
        if not fault.tokens_matter:
            return rejection(fault, body)
        # vLLM stops counting at its limit, so that its own sentence has no use.
        limit = self.client.model_config.max_model_len
        if "messages" not in body and "prompt" not in body:
            tokens = await self.pooling.longest_input(body, partial(self._count_text, body))
            return too_long(tokens, limit) if tokens > limit else rejection(fault, body)
        return rejection(fault, body, prompt_tokens=await self._longest_prompt(body), limit=limit)

    async def _longest_prompt(self, body: Mapping[str, Any]) -> int:
        """Tokens of the longest prompt; a chat's, as its template writes it."""
        if "messages" in body:
            names = self.tokenize_chat.model_fields.keys() & body.keys()
            return await self._count(self.tokenize_chat.model_validate({name: body[name] for name in names}))
        prompt = body["prompt"]
        prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        return max([await self._count_text(body, one) if isinstance(one, str) else len(one) for one in prompts])

    async def _count_text(self, body: Mapping[str, Any], text: str) -> int:
        """Tokens of a text in the request ``body``."""
        fields = {name: body[name] for name in ("model", "add_special_tokens") if name in body}
        return await self._count(self.tokenize_completion(prompt=text, **fields))

    async def _count(self, request: Any) -> int:
        response = await self.tokenization.create_tokenize(request, None)
        return int(getattr(response, "count", 0))


async def _serve(loaded: Loaded) -> _Serving:
    """Make the serving objects, as vLLM's server does."""
    from starlette.datastructures import State
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.serve import create_error_response
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest, TokenizeCompletionRequest
    from vllm.renderers.chat_utils import load_chat_template

    state = State()
    tasks = await loaded.client.get_supported_tasks()
    await init_app_state(loaded.client, state, loaded.arguments, tasks)
    pooling = _pooling(state, tasks)
    if "generate" not in tasks and not pooling.is_able:
        raise EngineUnavailableError(
            "the model generates no text, computes no embeddings and scores no texts; "
            f"what it does is {', '.join(sorted(tasks))}"
        )
    return _Serving(
        client=loaded.client,
        completion=getattr(state, "openai_serving_completion", None),
        chat=getattr(state, "openai_serving_chat", None),
        chat_abilities=_chat_abilities(loaded),
        template=partial(_template, loaded.client, load_chat_template(loaded.arguments.chat_template)),
        pooling=pooling,
        tokenization=state.serving_tokenization,
        completion_request=CompletionRequest,
        chat_request=ChatCompletionRequest,
        error_response=ErrorResponse,
        sampling=_sampling(loaded.client.model_config),
        to_response=create_error_response,
        tokenize_chat=TokenizeChatRequest,
        tokenize_completion=TokenizeCompletionRequest,
    )


def _chat_abilities(loaded: Loaded) -> ChatAbilities:
    """What the engine can do with chats."""
    config = loaded.client.vllm_config
    model = config.model_config
    return ChatAbilities(
        media=_media(model),
        media_hosts=frozenset(model.allowed_media_domains or ()),
        reads_local_media=bool(model.allowed_local_media_path),
        trusts_templates=loaded.arguments.trust_request_chat_template,
        trusts_media_arguments=loaded.arguments.trust_request_mm_kwargs,
        parses_reasoning=bool(config.structured_outputs_config.reasoning_parser) or _has_a_form_of_its_own(model),
        parses_tool_calls=bool(loaded.arguments.enable_auto_tool_choice),
    )


def _media(model: Any) -> frozenset[str]:
    """Of image, audio and video, what a model takes."""
    if not model.is_multimodal_model:
        return frozenset()
    from vllm.multimodal import MULTIMODAL_REGISTRY

    most = MULTIMODAL_REGISTRY.create_processor(model).info.allowed_mm_limits
    taken = {name for name, number in most.items() if number}
    # Some models take images and videos alike, under one name.
    return frozenset(taken | ({"image", "video"} if "vision_chunk" in taken else set()))


def _template(client: Any, default: str | None, body: Mapping[str, Any]) -> str | None:
    """The chat template for a request, as vLLM finds it."""
    from vllm.renderers.hf import HfRenderer, resolve_chat_template

    model = client.model_config
    if not isinstance(client.renderer, HfRenderer) or _has_a_form_of_its_own(model):
        return None
    given = body.get("chat_template") or default
    found: str | None = resolve_chat_template(
        client.renderer.get_tokenizer(), given, body.get("tools"), model_config=model
    )
    return found


def _pooling(state: Any, tasks: Collection[str]) -> Pooling:
    """What of the server's objects, which are ``None`` or missing where the model can't, answers pooling records."""
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest as VLLMRerankRequest
    from vllm.entrypoints.pooling.scoring.protocol import ScoreRequest as VLLMScoreRequest

    kinds = get_args(VLLMScoreRequest)
    return Pooling(
        tasks=tasks,
        embedding=getattr(state, "serving_embedding", None),
        scores=getattr(state, "serving_scores", None),
        forms={
            EmbeddingRequest: RequestForm(
                EmbeddingCompletionRequest.model_validate, EmbeddingCompletionRequest.model_fields
            ),
            ScoreRequest: RequestForm(
                TypeAdapter(VLLMScoreRequest).validate_python, {name for kind in kinds for name in kind.model_fields}
            ),
            RerankRequest: RequestForm(VLLMRerankRequest.model_validate, VLLMRerankRequest.model_fields),
        },
    )


def _sampling(config: Any) -> EngineSampling:
    """What vLLM's model config says about sampling."""
    most = int(config.max_logprobs)
    return EngineSampling(
        temperature=float(config.get_diff_sampling_param().get("temperature", 1)),
        max_logprobs=config.get_vocab_size() if most == -1 else most,
        gives_log_probabilities=config.logprobs_mode.endswith("logprobs"),
    )
