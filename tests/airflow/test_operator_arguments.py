"""What the operator does with its arguments: early refusals, templates, what is shown, and dynamic task mapping."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sized
from datetime import datetime
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from airflow.sdk import DAG, XComArg, task
from airflow.sdk.definitions.xcom_arg import get_task_map_length
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.operators.request_arguments import REQUEST_FIELDS, Verbatim, unwrap
from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from tests.airflow.operators_in_tests import task_context

MODEL = {"model": "m"}
TEMPLATES = ["{{ var.value.secret }}", "{% raw %}", "{{ 7*7 }}", "{# gone #}", "line\n"]
CONTENT = {"prompts": TEMPLATES, "max_new_tokens": 4, "temperature": 0}


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("dag", schedule=None) as dag:
        yield dag


def operator(**arguments: Any) -> LLMEngineBatchCompletionsOperator:
    return LLMEngineBatchCompletionsOperator(
        **{
            "task_id": "job",
            "input_data_path": "s3://in/x.jsonl",
            "output_data_path": "s3://out/x.jsonl",
            "model_config": MODEL,
            **arguments,
        }
    )


def rendered(job: LLMEngineBatchCompletionsOperator, **context: Any) -> dict[str, Any]:
    job.render_template_fields(task_context(**context))
    request: dict[str, Any] = unwrap(job.request)
    return request


def serialized(dag: DAG) -> str:
    return json.dumps(DagSerialization.to_dict(dag))


def test_the_arguments_are_the_contracts_fields() -> None:
    assert {field.alias or name for name, field in CreateBatchCompletionsV1Request.model_fields.items()} == set(
        REQUEST_FIELDS
    )


def test_fields_and_one_dictionary_are_two_ways_to_say_the_same() -> None:
    fields: dict[str, Any] = {
        "content": CONTENT,
        "output_data_path": "out.json",
        "model_config": MODEL,
        "labels": {"team": "data"},
    }
    one = LLMEngineBatchCompletionsOperator(task_id="one", request=fields)
    other = LLMEngineBatchCompletionsOperator(task_id="other", **fields)
    assert unwrap(one.request) == unwrap(other.request) == fields
    with pytest.raises(RequestRefusedError, match="request and labels were both given"):
        LLMEngineBatchCompletionsOperator(task_id="both", request=fields, labels={})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param({"input_data_path": None}, "neither input_data_path nor content", id="case 12, neither"),
        pytest.param({"content": CONTENT}, "content.*input_data_path", id="case 12, both"),
        pytest.param({"max_runtime_sec": 0}, r"max_runtime_sec: .*1.*172800", id="case 14, zero"),
        pytest.param({"max_runtime_sec": -1}, r"max_runtime_sec: .*1.*172800", id="case 14, negative"),
        pytest.param({"max_runtime_sec": 172801}, r"max_runtime_sec: .*1.*172800", id="case 14, too much"),
        pytest.param({"labels": {"team": "Data & AI"}}, r"labels\.team: .*'Data & AI'", id="case 20, characters"),
        pytest.param({"labels": {"team": "x" * 70}}, r"labels\.team: .*63", id="case 20, length"),
        pytest.param({"labels": {"team": 3}}, r"labels\.team: must be a string", id="case 20, type"),
        pytest.param({"model_config": {"model": "m", "num_shards": 0}}, r"model_config\.num_shards: ", id="nested"),
        pytest.param({"output_data_path": None}, "output_data_path: is required", id="missing"),
        pytest.param({"data_parallelism": 4}, "data_parallelism: 4 replicas", id="replicas"),
        pytest.param({"if_done": "maybe"}, "if_done is 'maybe'; it must be one of reuse, regenerate", id="if_done"),
        pytest.param({"overwrite": "perhaps"}, "overwrite is 'perhaps'", id="overwrite"),
        pytest.param({"max_error_rate": 5}, "max_error_rate is 5; it must be a number from 0 to 1", id="rate"),
        pytest.param({"max_error_rate": "nan"}, "max_error_rate", id="rate that is no number"),
        pytest.param({"engine_args": {"port": "{{ 80 }}"}}, r"engine_args\.port: can't be set: there is no", id="port"),
        pytest.param({"engine_args": {"dtype": "x"}}, r"engine_args\.dtype: .*give model_config\.dtype", id="dtype"),
        pytest.param({"engine_args": "{"}, "engine_args: is not valid JSON", id="engine_args that are not JSON"),
        pytest.param({"engine_args": [1]}, "engine_args: must be an object", id="engine_args that are a list"),
        pytest.param({"cache_path": "s3:/bucket"}, "cache_path: has no // after s3:", id="cache_path"),
        pytest.param({"cache_path": "https://x/y"}, "cache_path: can't be written to", id="cache_path to read"),
        pytest.param({"cache_path": "s3://b/c?sig=x"}, "cache_path: has a query", id="cache_path that is signed"),
        pytest.param({"cache_path": 5}, "cache_path is a int; it must be a path", id="cache_path that is a number"),
    ],
)
def test_what_can_not_be_run_is_refused_when_the_dag_is_parsed(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestRefusedError, match=sentence) as refused:
        operator(**arguments)
    assert isinstance(refused.value, AirflowFailException)
    assert len(str(refused.value).splitlines()) <= 2


def test_a_misspelt_field_names_the_nearest() -> None:
    """Case 13."""
    wrong = {"output_data_path": "x", "input_data_path": "y", "model_config": MODEL, "max_runtime_secs": 60}
    with pytest.raises(RequestRefusedError, match=r"max_runtime_secs: .*did you mean max_runtime_sec"):
        LLMEngineBatchCompletionsOperator(task_id="job", request=wrong)
    content = {**CONTENT, "stop_sequence": ["x"]}
    with pytest.raises(RequestRefusedError, match=r"content\.stop_sequence: .*stop_sequences"):
        operator(input_data_path=None, content=content)
    with pytest.raises(TypeError, match="no_such_thing"):
        operator(no_such_thing=60)


def test_all_faults_are_told_at_once_and_none_quotes_a_prompt() -> None:
    content = {"prompts": ["SECRET", 3], "max_new_tokens": "SECRET", "temperature": 7}
    with pytest.raises(RequestRefusedError) as refused:
        operator(input_data_path=None, content=content, max_runtime_sec=0, model_config={})
    told = str(refused.value)
    assert all(
        path in told for path in ("prompts", "max_new_tokens", "temperature", "max_runtime_sec", "model_config.model")
    )
    assert "SECRET" not in told


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_runtime_sec": "{{ params.seconds }}"},
        {"model_config": {"model": "m", "num_shards": "{{ params.shards }}", "gpu_memory_utilization": "{{ 0.5 }}"}},
        {"labels": {"team": "{{ params.team }} &"}},
        {"gpu_type": "{% if true %}nvidia-tesla-t4{% endif %}"},
        {"request": "{{ params.request }}", "input_data_path": None, "output_data_path": None, "model_config": None},
        {"data_parallelism": "{{ 1 }}"},
        {"if_done": "{{ x }}", "overwrite": "{{ x }}", "max_error_rate": "{{ x }}"},
        {"engine_args": "{{ params.engine | tojson }}"},
        {"cache_path": "{{ params.cache }}"},
        {"engine_args": {"max_logprobs": "{{ params.most }}", "compilation_config": {"mode": "{{ 0 }}"}}},
    ],
)
def test_what_is_a_template_is_not_judged_before_it_is_rendered(arguments: dict[str, Any]) -> None:
    operator(**arguments)


def test_engine_args_are_a_template_leaf_by_leaf_or_the_output_of_a_task() -> None:
    given = {"max_logprobs": "{{ 40 }}", "override_generation_config": {"temperature": ["{{ 1 }}", 0.5]}, "a": None}
    job = operator(engine_args=given)
    job.render_template_fields({})
    assert job._options().engine_args == {
        "max_logprobs": "40",
        "override_generation_config": {"temperature": ["1", 0.5]},
    }
    whole = operator(engine_args="{{ {'max_logprobs': 40} | tojson }}")
    whole.render_template_fields({})
    assert whole._options().engine_args == {"max_logprobs": 40}
    late = operator(engine_args="{{ {'host': 'x'} | tojson }}")
    late.render_template_fields({})
    with pytest.raises(RequestRefusedError, match=r"engine_args\.host"):
        late._options()


def test_cache_path_is_a_template_and_an_empty_one_is_none() -> None:
    for given, path in (("s3://cache/{{ 'en' }}", "s3://cache/en"), ("{{ '' }}", None), (None, None)):
        job = operator(cache_path=given)
        job.render_template_fields({})
        assert job._options().cache_path == path


def test_what_is_no_template_is_judged_beside_one_that_is() -> None:
    with pytest.raises(RequestRefusedError) as refused:
        operator(output_data_path="{{ ds }}/x", max_runtime_sec="{{ x }}", model_config={"model": "m", "seed": "many"})
    assert "model_config.seed" in str(refused.value)
    assert "max_runtime_sec" not in str(refused.value)
    with pytest.raises(RequestRefusedError, match="priority"):
        operator(output_data_path="{{ ds }}/x", priority="Not A Class")


def test_every_leaf_is_a_template_and_arrives_as_text() -> None:
    job = operator(
        input_data_path="s3://b/{{ run_id }}/in.jsonl",
        output_data_path="s3://b/{{ run_id }}/out.json",
        labels={"run": "{{ run_id }}"},
        max_runtime_sec="{{ 60 * 60 }}",
        model_config={"model": "{{ 'm' }}", "num_shards": "{{ 2 }}", "rope_scaling": {"factor": ["{{ 4 }}"]}},
        llmengine_conn_id="conn_{{ run_id }}",
        if_done="{{ 'reuse' }}",
    )
    assert rendered(job) == {
        "input_data_path": "s3://b/run-1/in.jsonl",
        "output_data_path": "s3://b/run-1/out.json",
        "labels": {"run": "run-1"},
        "max_runtime_sec": "3600",
        "model_config": {"model": "m", "num_shards": "2", "rope_scaling": {"factor": ["4"]}},
    }
    assert (job.llmengine_conn_id, job.if_done) == ("conn_run-1", "reuse")


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".yaml", ".yml", ".sql", ".j2", ".sh"])
def test_a_path_is_never_looked_up_as_a_template_file(dag: DAG, ending: str) -> None:
    """Case 16."""
    job = operator(output_data_path="s3://b/{{ run_id }}/out" + ending)
    job.resolve_template_files()
    assert rendered(job)["output_data_path"] == "s3://b/run-1/out" + ending


@pytest.mark.parametrize("native", [True, False])
def test_the_users_text_passes_letter_for_letter(native: bool) -> None:
    """Case 15."""
    model_config = {"model": "{{ 'm' }}", "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}\n"}
    with DAG("dag", schedule=None, render_template_as_native_obj=native):
        job = operator(input_data_path=None, content=CONTENT, model_config=model_config)
    for _ in range(2):
        request = rendered(job)
        assert request["content"] == CONTENT
        assert request["model_config"] == {"model": "m", "chat_template": model_config["chat_template"]}


def test_the_users_own_dictionaries_are_left_as_they_are() -> None:
    model_config = {"model": "m", "chat_template": "{{ x }}"}
    request = {"content": CONTENT, "output_data_path": "out.json", "model_config": model_config}
    LLMEngineBatchCompletionsOperator(task_id="job", request=request)
    assert request["content"] is CONTENT
    assert request["model_config"] == {"model": "m", "chat_template": "{{ x }}"}


class UpstreamValue(XComArg):
    """Stands for what an upstream task pushed: without a metadata database nothing can be pulled."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def iter_references(self) -> Any:
        return iter(())

    def resolve(self, context: Any) -> Any:
        return self.value


@get_task_map_length.register
def _(_value: UpstreamValue, resolved: Sized, _indexes: dict[str, int]) -> int:
    return len(resolved)


def test_xcoms_in_the_users_text_are_resolved_and_not_rendered() -> None:
    job = operator(
        input_data_path=None,
        content={**CONTENT, "prompts": UpstreamValue(["{{ 7*7 }}"]), "temperature": UpstreamValue(0.5)},
        model_config={"model": "m", "chat_template": UpstreamValue("{{ messages }}")},
        labels={"team": UpstreamValue("data")},
    )
    request = rendered(job)
    assert request["content"] == {"prompts": ["{{ 7*7 }}"], "max_new_tokens": 4, "temperature": 0.5}
    assert request["model_config"]["chat_template"] == "{{ messages }}"
    assert request["labels"] == {"team": "data"}
    assert isinstance(job.request["content"], Verbatim)


def test_a_whole_request_from_an_xcom_is_data_too() -> None:
    request = {"content": CONTENT, "output_data_path": "{{ conn.secret }}", "model_config": MODEL}
    job = LLMEngineBatchCompletionsOperator(task_id="job", request=UpstreamValue(request))
    assert rendered(job) == request
    assert isinstance(job.request["content"], Verbatim), "it would be shown"


def test_content_is_shown_nowhere(dag: DAG) -> None:
    from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

    content = {"prompts": ["PRIVATE"] * 3, "max_new_tokens": 4, "temperature": 0, "stop_sequences": ["PRIVATE"]}
    job = operator(input_data_path=None, content=content, model_config={"model": "m", "chat_template": "{{ shown }}"})
    assert "PRIVATE" not in serialized(dag)
    job.render_template_fields(task_context())
    shown = _serialize_rendered_fields(job)
    assert shown["request"] == {
        "content": "<3 prompts, not shown>",
        "model_config": {"chat_template": "{{ shown }}", "model": "m"},
        "output_data_path": "s3://out/x.jsonl",
    }
    assert "PRIVATE" not in json.dumps(shown) + repr(job.request) + str(job.request)


def test_two_mebibytes_of_content_do_not_enter_the_serialized_dag(dag: DAG) -> None:
    """Case 19, for each way in which a DAG can hold it."""
    content = {"prompts": ["PRIVATE " * 32] * 8192, "max_new_tokens": 4, "temperature": 0}
    assert len(json.dumps(content)) > 2 * 1024**2
    request = {"content": content, "output_data_path": "out.json", "model_config": MODEL}
    arguments = {"task_id": "job", "model_config": MODEL}
    mapped = LLMEngineBatchCompletionsOperator.partial
    operator(input_data_path=None, content=content)
    LLMEngineBatchCompletionsOperator(task_id="whole", request=request)
    mapped(**{**arguments, "task_id": "shared"}, content=content).expand(output_data_path=["a", "b"])
    mapped(task_id="expanded", model_config=MODEL, output_data_path="{{ ds }}").expand(content=[content, content])
    mapped(task_id="requests").expand(request=[request])
    mapped(task_id="shared_request", request=request).expand(if_done=["reuse", "regenerate"])
    mapped(task_id="kwargs", model_config=MODEL).expand_kwargs([{"content": content, "output_data_path": "a"}])
    text = serialized(dag)
    assert "PRIVATE" not in text
    assert len(text) < 64 * 1024
    DagSerialization.from_dict(json.loads(text))


def unmapped(mapped: Any, map_index: int) -> LLMEngineBatchCompletionsOperator:
    """The task that Airflow makes of a mapped one when it runs, rendered."""
    context = task_context(map_index=map_index, dag=mapped.dag, dag_run=SimpleNamespace(conf={}))
    mapped.render_template_fields(context)
    job: LLMEngineBatchCompletionsOperator = context["task"]
    return job


def test_a_mapped_task_lays_its_fields_over_the_shared_ones(dag: DAG) -> None:
    mapped = LLMEngineBatchCompletionsOperator.partial(
        task_id="job", content=CONTENT, model_config={"model": "{{ run_id }}", "chat_template": "{{ x }}"}
    ).expand(output_data_path=["{{ run_id }}/a", "{{ run_id }}/b"])
    assert unwrap(unmapped(mapped, 1).request) == {
        "content": CONTENT,
        "model_config": {"model": "run-1", "chat_template": "{{ x }}"},
        "output_data_path": "run-1/b",
    }
    with pytest.raises(TypeError, match="output_data_path was given to partial"):
        LLMEngineBatchCompletionsOperator.partial(
            task_id="twice", output_data_path="a", input_data_path="b", model_config=MODEL
        ).expand(output_data_path=["c"])
    with pytest.raises(TypeError, match="request and labels were both given"):
        LLMEngineBatchCompletionsOperator.partial(task_id="both", request={}, labels={})


def test_content_that_is_mapped_over_is_not_shown_in_whatever_it_comes(dag: DAG) -> None:
    @task
    def made() -> Any: ...

    private = {**CONTENT, "prompts": ["PRIVATE"]}
    partial = LLMEngineBatchCompletionsOperator.partial
    partial(task_id="tuple", output_data_path="{{ ti.map_index }}", model_config=MODEL).expand(content=(private,))
    kwargs: Any = [{"content": private, "output_data_path": "a"}, made()]
    partial(task_id="kwargs", model_config=MODEL).expand_kwargs(kwargs)
    text = serialized(dag)
    assert "PRIVATE" not in text
    assert text.count("prompts, not shown") == 2
    assert dag.task_dict["kwargs"].upstream_task_ids == {"made"}


def test_a_mapped_task_is_checked_when_it_is_made(dag: DAG) -> None:
    mapped = LLMEngineBatchCompletionsOperator.partial(task_id="job", content=CONTENT, model_config=MODEL).expand(
        output_data_path=["a", 3]
    )
    with pytest.raises(RequestRefusedError, match="output_data_path"):
        unmapped(mapped, 1)


def test_what_a_mapped_task_gets_from_an_xcom_is_not_rendered(dag: DAG) -> None:
    """Airflow's rule: a value that another task made is data, and could otherwise read connections."""

    @task
    def upstream() -> list[Any]:
        return []

    evil = "{{ conn.secret.password }}"
    requests = [
        {
            "content": {**CONTENT, "prompts": [evil]},
            "output_data_path": evil,
            "model_config": {"model": evil, "chat_template": evil},
        }
    ]
    mapped: Any = LLMEngineBatchCompletionsOperator.partial(task_id="whole").expand(request=upstream())
    mapped.expand_input.value["request"] = UpstreamValue(requests)
    assert unwrap(unmapped(mapped, 0).request) == requests[0]

    mapped = LLMEngineBatchCompletionsOperator.partial(
        task_id="parts", input_data_path="{{ run_id }}", output_data_path="out"
    ).expand(model_config=upstream())
    mapped.expand_input.value["model_config"] = UpstreamValue([requests[0]["model_config"]])
    assert unwrap(unmapped(mapped, 0).request) == {
        "input_data_path": "run-1",
        "output_data_path": "out",
        "model_config": {"model": evil, "chat_template": evil},
    }


def test_xcoms_make_their_tasks_upstream(dag: DAG) -> None:
    @task
    def made() -> Any: ...

    value = made()
    plain = operator(task_id="plain", input_data_path=value)
    in_content = operator(task_id="in_content", input_data_path=None, content={**CONTENT, "prompts": value})
    in_template = operator(task_id="in_template", model_config={"model": "m", "chat_template": value})
    whole = LLMEngineBatchCompletionsOperator(task_id="whole", request=value)
    partial = LLMEngineBatchCompletionsOperator.partial
    shared = partial(task_id="shared", input_data_path=value, model_config=MODEL).expand(output_data_path=["a"])
    expanded = partial(task_id="expanded", output_data_path="a", model_config=MODEL).expand(input_data_path=value)
    for job in (plain, in_content, in_template, whole, shared, expanded):
        assert job.upstream_task_ids == {"made"}, job.task_id


def test_default_args_reach_the_request_and_the_pod_options() -> None:
    with DAG("dag", schedule=None, default_args={"labels": {"team": "data"}, "namespace": "gpu", "retries": 4}):
        job = operator()
    assert job.request["labels"] == {"team": "data"}
    assert (job.namespace, job.retries) == ("gpu", 4)


def test_what_is_given_goes_before_default_args_mapped_or_not() -> None:
    defaults = {"model_config": {"model": "default"}, "max_runtime_sec": 100, "labels": {"team": "data"}}
    given: dict[str, Any] = {"model_config": {"model": "given"}, "max_runtime_sec": 7, "content": CONTENT}
    with DAG("dag", schedule=None, default_args=defaults):
        plain = LLMEngineBatchCompletionsOperator(task_id="plain", output_data_path="a", **given)
        whole = LLMEngineBatchCompletionsOperator(task_id="whole", request={**given, "output_data_path": "a"})
        mapped = LLMEngineBatchCompletionsOperator.partial(task_id="mapped", **given).expand(output_data_path=["a"])
        over = LLMEngineBatchCompletionsOperator.partial(task_id="over", content=CONTENT, output_data_path="a").expand(
            model_config=[{"model": "given"}]
        )
    expected = {**given, "output_data_path": "a", "labels": {"team": "data"}}
    assert unwrap(plain.request) == expected
    assert unwrap(whole.request) == expected
    assert unwrap(unmapped(mapped, 0).request) == expected
    assert unwrap(unmapped(over, 0).request) == {**expected, "max_runtime_sec": 100}


def test_default_args_can_not_be_laid_under_a_request_that_another_task_makes() -> None:
    with DAG("dag", schedule=None, default_args={"max_runtime_sec": 100}):

        @task
        def make() -> dict[str, Any]:
            return {}

        with pytest.raises(RequestRefusedError, match="default_args gives max_runtime_sec"):
            LLMEngineBatchCompletionsOperator(task_id="job", request=make())


def test_it_takes_every_option_of_the_pod_operator() -> None:
    from inspect import signature

    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    job = operator(image="worker:1", namespace="gpu", deferrable=False, pool="gpus", node_selector={"a": "b"})
    assert isinstance(job, KubernetesPodOperator)
    assert (job.image, job.namespace, job.pool, job.node_selector) == ("worker:1", "gpu", "gpus", {"a": "b"})
    assert job.do_xcom_push
    assert job.multiple_outputs
    assert set(KubernetesPodOperator.template_fields) < set(LLMEngineBatchCompletionsOperator.template_fields)
    # What both know under one name means the request's field; nothing else is taken from the pod operator.
    mro = LLMEngineBatchCompletionsOperator.__mro__
    own = {
        name
        for mixin in mro[: mro.index(KubernetesPodOperator)]
        if "__init__" in vars(mixin)
        for name in signature(vars(mixin)["__init__"]).parameters
    }
    assert own & set(signature(KubernetesPodOperator.__init__).parameters) == {
        "self",
        "labels",
        "do_xcom_push",
        "kwargs",
    }


def test_another_pod_operator_takes_one_line() -> None:
    from airflow.providers.amazon.aws.operators.eks import EksPodOperator

    from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsMixin

    class EksBatchCompletionsOperator(LLMEngineBatchCompletionsMixin, EksPodOperator):
        pass

    job = EksBatchCompletionsOperator(
        task_id="job",
        cluster_name="c",
        pod_name="p",
        input_data_path="in",
        output_data_path="out.json",
        model_config=MODEL,
        start_date=datetime(2026, 1, 1),  # noqa: DTZ001
    )
    assert unwrap(job.request)["input_data_path"] == "in"
    assert {"request", "cluster_name", "image"} <= set(EksBatchCompletionsOperator.template_fields)
    assert EksBatchCompletionsOperator.template_fields_renderers["request"] == "json"


@pytest.mark.parametrize(
    ("argument", "meant"),
    [("max_runtime_secs", "max_runtime_sec"), ("input_data_paths", "input_data_path"), ("overwite", "overwrite")],
)
def test_a_misspelt_argument_is_told_with_the_right_one(argument: str, meant: str) -> None:
    """Case 13, in a DAG."""
    wrong: dict[str, Any] = {argument: 5}
    with pytest.raises(RequestRefusedError, match=f"{argument}: unknown argument; did you mean {meant}?"):
        LLMEngineBatchCompletionsOperator(task_id="t", **wrong)
    with pytest.raises(RequestRefusedError, match=f"did you mean {meant}?"):
        LLMEngineBatchCompletionsOperator.partial(task_id="t", **wrong)
    with DAG("d", schedule=None), pytest.raises(RequestRefusedError, match=f"did you mean {meant}?"):
        LLMEngineBatchCompletionsTaskGroup("g", output_data_path="/tmp/x", model_config={"model": "m"}, **wrong)


def test_the_group_says_in_words_what_it_does_not_take() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"foo": "x"}, "foo: unknown to the group"),
        ({"task_id": "x"}, "give group_id"),
    ]
    for wrong, said in cases:
        with DAG("d", schedule=None), pytest.raises(RequestRefusedError, match=said):
            LLMEngineBatchCompletionsTaskGroup("g", output_data_path="/tmp/x", model_config={"model": "m"}, **wrong)


@pytest.mark.parametrize(
    ("arguments", "slots"),
    [
        ({"gpus": 4, "pool": "gpus"}, 4),
        ({"gpus": "4", "pool": "gpus"}, 4),
        ({"gpus": 1, "pool": "gpus"}, 1),
        ({"gpus": 4, "default_args": {"pool": "gpus"}}, 4),
        ({"default_args": {"pool": "gpus", "gpus": 4}}, 4),
        ({"gpus": 2, "default_args": {"pool": "gpus", "gpus": 4}}, 2),
        ({"gpus": 4, "pool": "gpus", "pool_slots": 2}, 2),
        ({"gpus": 4, "default_args": {"pool": "gpus", "pool_slots": 2}}, 2),
        ({"pool": "gpus"}, 1),
        ({"gpus": "{{ params.gpus }}", "pool": "gpus"}, 1),
        ({"gpus": 4, "nodes_per_worker": 2, "pool": "gpus"}, 8),
        ({"gpus": 4, "nodes_per_worker": "2", "pool": "gpus"}, 8),
        ({"gpus": 4, "nodes_per_worker": "{{ params.nodes }}", "pool": "gpus"}, 4),
        # Slots of no pool of GPUs.
        ({"gpus": 4}, 1),
    ],
)
def test_in_a_pool_a_task_takes_a_slot_for_each_of_its_gpus(dag: DAG, arguments: dict[str, Any], slots: int) -> None:
    assert operator(**arguments).pool_slots == slots
    shared = {"input_data_path": "in", "model_config": MODEL, **arguments}
    mapped = LLMEngineBatchCompletionsOperator.partial(task_id="mapped", **shared).expand(output_data_path=["a", "b"])
    assert mapped.pool_slots == slots


def test_so_it_does_when_the_request_is_given_whole() -> None:
    request = {"input_data_path": "in", "output_data_path": "out", "model_config": MODEL, "gpus": 4}
    job = LLMEngineBatchCompletionsOperator(task_id="job", request=request, pool="gpus")
    assert job.pool_slots == 4


def test_what_constructors_take_is_found_out_once_for_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures are slow to read, and the scheduler makes the operators of every DAG file again and again."""
    operator(task_id="first")

    def read_again(*_arguments: object) -> NoReturn:
        raise AssertionError("a signature was read again")

    monkeypatch.setattr(inspect, "signature", read_again)
    operator(task_id="second")
