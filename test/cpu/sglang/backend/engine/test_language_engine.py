"""The same program text in process and over HTTP, and select against direct computation.

The model has random weights, so that nothing is right by luck: every number must agree.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import sglang as sgl
from helpers.tiny_model import write_config
from helpers.toy_tokenizer import byte_level
from sglang.backend.base import Prompt
from sglang.ir.choices import METHODS
from sglang.utils import http_request

pytest.importorskip("torch")

WORDS = ["fox", "foxes", "the lazy dog", " dog", "über"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("model")
    byte_level(directory)
    write_config(Path(directory), vocab_size=512)
    return {
        "model_path": str(directory), "load_format": "dummy", "dtype": "float32",
        "device": "cpu", "max_total_tokens": 20000, "context_length": 512, "threads": 1,
        "log_level": "warning",
    }  # fmt: skip


@pytest.fixture(scope="module")
def engine(settings: dict[str, Any]) -> Iterator[sgl.Engine]:
    with sgl.Engine(**settings) as engine:
        yield engine


@pytest.fixture(scope="module")
def runtime(settings: dict[str, Any]) -> Iterator[sgl.Runtime]:
    with sgl.Runtime(**settings, api_key="secret") as runtime:
        yield runtime


@pytest.fixture(params=["engine", "runtime"])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_an_unknown_field_is_an_error_that_names_the_nearest(engine: sgl.Engine) -> None:
    with pytest.raises(TypeError, match="unknown field 'extra_keys'; did you mean 'extra_key'"):
        engine.generate("a", {"max_new_tokens": 1}, extra_keys="x")
    with pytest.raises(TypeError, match="unknown field 'zzz'; the fields are text, input_ids"):
        asyncio.run(engine.async_generate("a", {"max_new_tokens": 1}, zzz=1))
    with pytest.raises(TypeError, match="unknown field 'poling'; did you mean 'pooling'"):
        engine.encode("a", poling="mean")
    with pytest.raises(sgl.BackendError, match="a custom logit processor is not available"):
        engine.generate("a", custom_logit_processor="{}")
    found = engine.generate("a", {"max_new_tokens": 1}, session_id="s", custom_logit_processor=None)
    assert found["meta_info"]["completion_tokens"] == 1


GOES_ON: dict[str, dict[str, Any]] = {
    "sampled": {"ignore_eos": True},
    "penalties": {"ignore_eos": True, "frequency_penalty": 0.8, "repetition_penalty": 1.2},
    "regex": {"regex": "([a-z]{1,6} ){2,4}"},
    "regex with a forced end": {"regex": "[ab]{1,3}, the end"},
    "regex cut by its limit": {"regex": "([a-z]{1,6} ){3,9}", "max_new_tokens": 9},
    "json": {"json_schema": '{"type": "array", "items": {"type": "integer"}, "maxItems": 3}'},
}


@pytest.mark.parametrize("case", GOES_ON)
def test_a_text_goes_on_behind_output_ids(case: str, engine: sgl.Engine) -> None:
    """Text, tokens, reason and log-probabilities are those of the whole, from each token on."""
    settings = {"max_new_tokens": 24, "sampling_seed": 5, **GOES_ON[case]}
    ways: list[dict[str, Any]] = [{}, {"return_logprob": True, "top_logprobs_num": 2}]
    for scored in ways:
        whole = engine.generate("The fox", settings, **scored)
        ids = whole["output_ids"]
        assert len(ids) > 3
        for given in range(1, len(ids) + 1):
            found = engine.generate("The fox", settings, output_ids=ids[:given], **scored)
            assert (found["text"], found["output_ids"]) == (whole["text"], ids)
            meta, old = found["meta_info"], whole["meta_info"]
            for name in ("finish_reason", "prompt_tokens", "completion_tokens"):
                assert meta[name] == old[name]
            if scored:
                rest = numbers(meta["output_top_logprobs"])
                assert rest == pytest.approx(numbers(old["output_top_logprobs"][given:]), abs=1e-4)
                assert len(meta["output_token_logprobs"]) == len(ids) - given


def numbers(tops: list[list[Any]]) -> list[float]:
    """Log-probabilities and ids, one behind another."""
    return [number for top in tops for value, token, _ in top for number in (value, token)]


def constrained(engine: sgl.Engine, **more: Any) -> dict[str, Any]:
    """Log-probabilities under a constraint that allows three letters, then two."""
    fields: dict[str, Any] = {
        "return_logprob": True,
        "top_logprobs_num": 5,
        "token_ids_logprob": letters(engine),
    }
    parameters = {"regex": "[abc][de]", "temperature": 0, "max_new_tokens": 2}
    found: dict[str, Any] = engine.generate("The", parameters, **{**fields, **more})["meta_info"]
    return found


def letters(engine: sgl.Engine) -> list[int]:
    return [engine.tokenizer.encode(letter, False)[0] for letter in "abcdez"]


def test_log_probabilities_among_the_constraints_tokens(engine: sgl.Engine) -> None:
    raw, masked = constrained(engine), constrained(engine, masked_logprobs=True)
    ids = letters(engine)
    tokens = [triple[1] for triple in masked["output_token_logprobs"]]
    assert tokens == [triple[1] for triple in raw["output_token_logprobs"]]
    for place, allowed in enumerate((ids[:3], ids[3:5])):
        own = {t: v for v, t, _ in raw["output_token_ids_logprobs"][place]}
        total = math.log(sum(math.exp(own[token]) for token in allowed))
        expected = {token: own[token] - total for token in allowed}
        tops = {token: value for value, token, _ in masked["output_top_logprobs"][place]}
        assert tops == pytest.approx(expected, abs=1e-4)
        assert sum(map(math.exp, tops.values())) == pytest.approx(1)
        probes = {t: v for v, t, _ in masked["output_token_ids_logprobs"][place]}
        assert {t for t, v in probes.items() if v is not None} == set(allowed)
        value, token, _ = masked["output_token_logprobs"][place]
        assert value == pytest.approx(expected[token], abs=1e-4)
        assert len(raw["output_top_logprobs"][place]) == 5


def test_a_forced_token_has_log_probability_0_among_allowed_ones(engine: sgl.Engine) -> None:
    """Also where it was checked as a draft: forced ones are, where log-probabilities are wanted."""
    found = []
    for speculation in ("off", "ngram"):
        parameters = {"regex": "[ab]: the fox, the fox, the [de]", "temperature": 0,
                      "max_new_tokens": 40, "speculation": speculation}  # fmt: skip
        answer = engine.generate(
            "The", parameters, return_logprob=True, top_logprobs_num=3, masked_logprobs=True
        )
        assert answer["text"][1:-1] == ": the fox, the fox, the "
        meta = answer["meta_info"]
        found.append(meta["output_top_logprobs"])
        for (value, token, _), tops in zip(meta["output_token_logprobs"], found[-1]):
            values = [top for top, _, _ in tops]
            assert 0 < sum(map(math.exp, values)) <= 1.0001
            if len(tops) == 1:  # nothing else was allowed
                assert (value, token) == (pytest.approx(0, abs=1e-5), tops[0][1])
        assert len(found[-1][0]) == 2
    for one, other in zip(*found):
        assert [top[1] for top in one] == [top[1] for top in other]
        assert [top[0] for top in one] == pytest.approx([top[0] for top in other], abs=1e-4)


def test_log_probabilities_without_a_constraint_are_never_masked(engine: sgl.Engine) -> None:
    fields: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 3}
    parameters = {"temperature": 0, "max_new_tokens": 3}
    both = [engine.generate("The", parameters, **fields, masked_logprobs=m) for m in (False, True)]
    raw, masked = (one["meta_info"]["output_top_logprobs"] for one in both)
    assert raw == masked


def test_masked_log_probabilities_over_http(runtime: sgl.Runtime) -> None:
    headers = {"Authorization": "Bearer secret"}
    body = {"max_tokens": 2, "temperature": 0, "regex": "[abc][de]", "masked_logprobs": True}
    with httpx.Client(base_url=runtime.url, headers=headers) as http:
        found = http.post("/v1/completions", json={**body, "prompt": "The", "logprobs": 5}).json()
        tops = found["choices"][0]["logprobs"]["top_logprobs"]
        assert [set(top) for top in tops] == [set("abc"), set("de")]
        chat = {**body, "messages": [{"role": "user", "content": "The"}], "logprobs": True}
        reply = http.post("/v1/chat/completions", json={**chat, "top_logprobs": 5}).json()
        content = reply["choices"][0]["logprobs"]["content"]
        assert [{top["token"] for top in one["top_logprobs"]} for one in content] == [
            set("abc"), set("de"),
        ]  # fmt: skip


@sgl.function
def everything(s, topic):
    s += sgl.system("Be brief.") + sgl.user("Tell me about " + topic)
    with s.assistant():
        s += sgl.gen("first", max_tokens=6)
        forks = s.fork(5)
        forks += lambda i: f" Point {i}:" + sgl.gen("point", max_tokens=4, stop="e")
        forks.join()
        for name in ("token_length_normalized", "greedy_token_selection",
                     "unconditional_likelihood_normalized"):  # fmt: skip
            s += " " + sgl.select(name, WORDS, choices_method=name)
        s += sgl.gen("pair", max_tokens=3, n=2, temperature=0.0)
        s += sgl.gen("seeded", max_tokens=5, temperature=1.0, seed=11, ignore_eos=True)


def test_the_same_program_in_process_and_over_http(
    engine: sgl.Engine, runtime: sgl.Runtime
) -> None:
    here = everything.run("foxes", backend=engine, temperature=0.0)
    there = everything.run("foxes", backend=runtime, temperature=0.0)
    assert here.text() == there.text()
    for name in ("first", "point", "greedy_token_selection", "pair", "seeded"):
        assert here[name] == there[name]
    assert len(here["point"]) == 5
    assert here["pair"][0] == here["pair"][1]
    assert here.get_meta_info("seeded")["completion_tokens"] == 5
    assert here.usage.cached_tokens > here.usage.prompt_tokens / 2


def test_streaming_gives_the_same_text(backend: Any) -> None:
    whole = everything.run("dogs", backend=backend, temperature=0.0).text()
    state = everything.run("dogs", backend=backend, temperature=0.0, stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == whole
    assert len(pieces) > 3  # a reader that wakes late gets more at once


def test_batches_agree_with_single_runs(engine: sgl.Engine) -> None:
    topics = [f"animal {i}" for i in range(12)]
    states = everything.run_batch([(t,) for t in topics], backend=engine, temperature=0.0)
    for topic, state in list(zip(topics, states))[::4]:
        assert state.text() == everything.run(topic, backend=engine, temperature=0.0).text()


def direct(engine: sgl.Engine, prompt: str, option: str) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities of prompt + option, each from the distribution alone."""
    ids = list(engine.tokenizer.encode(prompt + option))
    logprobs = [0.0]
    for end in range(1, len(ids)):
        answer = engine.generate(
            input_ids=ids[:end],
            sampling_params={"max_new_tokens": 1, "temperature": 0.0},
            return_logprob=True,
            token_ids_logprob=[ids[end]],
        )
        logprobs.append(answer["meta_info"]["output_token_ids_logprobs"][0][0][0])
    return ids, logprobs


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("The quick brown ", WORDS),
        ("The quick brown fo", ["x jumps", "g", "x"]),  # tokens across the boundary
        ("Grü", ["ße aus", "n", "ß"]),
        ("The quick brown fox jumps over the lazy dog; the dog sl", ["eeps", "ips", "ow"]),
    ],
)
def test_select_against_direct_computation(backend: Any, engine: Any, prompt, options) -> None:
    target = getattr(backend, "endpoint", backend)
    own = list(engine.tokenizer.encode(prompt))
    scored = [direct(engine, prompt, option) for option in options]
    first = min(
        next((i for i, (a, b) in enumerate(zip(own, ids)) if a != b), len(own)) for ids, _ in scored
    )
    means = [sum(logprobs[first:]) / len(logprobs[first:]) for _, logprobs in scored]
    decision = target.choose(Prompt(prompt), options, METHODS["token_length_normalized"])
    assert decision.meta["normalized_prompt_logprobs"] == pytest.approx(means, abs=1e-4)
    assert means[options.index(decision.text)] == pytest.approx(max(means), abs=1e-4)
    tokens = [[e[1] for e in row] for row in decision.meta["input_token_logprobs"]]
    assert tokens == [ids[first:] for ids, _ in scored]

    decision = target.choose(
        Prompt(prompt), options, METHODS["unconditional_likelihood_normalized"]
    )
    gains = []
    for ids, logprobs in scored:
        text_ids = ids[first:]
        answer = engine.generate(
            input_ids=text_ids, sampling_params={"max_new_tokens": 0},
            return_logprob=True, logprob_start_len=0,
        )  # fmt: skip
        alone = [e[0] or 0.0 for e in answer["meta_info"]["input_token_logprobs"]]
        gains.append(sum(a - b for a, b in zip(logprobs[first:], alone)) / len(alone))
    assert decision.meta["normalized_unconditional_prompt_logprobs"] == pytest.approx(
        gains, abs=1e-4
    )
    # The random model may score two options alike; rounding then decides.
    assert gains[options.index(decision.text)] == pytest.approx(max(gains), abs=1e-4)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("prompt", ["The quick brown fo", "", "The fox\n" * 20])
def test_a_tree_of_options_has_the_numbers_of_rows(
    engine: Any, name: str, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit: what is computed of a token depends on no other row."""
    if METHODS[name].generates:
        pytest.skip("no option is scored")
    options = [*WORDS, *(f"x {i} {i % 7}" for i in range(40))]
    tree = engine.choose(Prompt(prompt), options, METHODS[name])
    monkeypatch.setattr(engine, "scores_options", False)
    rows = engine.choose(Prompt(prompt), options, METHODS[name])
    usage, other = tree.meta.pop("usage"), rows.meta.pop("usage")
    assert (tree.text, tree.meta) == (rows.text, json.loads(json.dumps(rows.meta)))
    assert 2 * (usage["prompt_tokens"] - usage["cached_tokens"]) < other["prompt_tokens"]


def test_one_of_many_texts_is_written(backend: Any, engine: Any) -> None:
    """Select writes it without scores, and gen samples it."""
    options = [f"{first} {second}" for first in WORDS for second in range(200)]

    @sgl.function
    def program(s):
        s += "The " + sgl.select("x", options, choices_method=sgl.constrained_decoding)
        s += " and " + sgl.gen("y", 40, one_of=WORDS, temperature=1.5, seed=3)

    state = program.run(backend=backend)
    assert state["x"] in options
    assert state["y"] in WORDS
    assert state.value("y") == state["y"]
    assert "normalized_prompt_logprobs" not in state.get_meta_info("x")
    parameters = {"choices": options, "temperature": 0, "max_new_tokens": 40}
    assert state["x"] == engine.generate("The ", parameters)["text"]


def test_one_of_is_whole_or_an_error(backend: Any) -> None:
    """An option is longer than the default limit, and the stops stand in both."""
    options = ["ab\n" * 60, "cd\n" * 60]

    @sgl.function
    def program(s, most):
        s += "The " + sgl.gen("x", most, one_of=options, stop="\n", stop_regex="b|d") + "!"

    assert program.run(None, backend=backend)["x"] in options
    with pytest.raises(sgl.ProgramError, match=r"stopped at max_tokens=5: .* is none of"):
        program.run(5, backend=backend)["x"]


def test_one_of_on_the_server_is_whole_or_an_error(runtime: Any) -> None:
    options = ["ab\n" * 60, "cd\n" * 60]

    @sgl.function
    def whole(s):
        s += "The " + sgl.gen("x", one_of=options, stop="\n") + "!"

    @sgl.function
    def cut(s):
        s += "The " + sgl.gen("x", one_of=options, max_tokens=5) + "!"

    assert whole.run(backend=runtime, on="server")["x"] in options
    with pytest.raises(sgl.ProgramError, match=r"stopped at max_tokens=5: .* is none of"):
        cut.run(backend=runtime, on="server")["x"]


def test_the_boundary_cases_really_cross_it(engine: sgl.Engine) -> None:
    own = list(engine.tokenizer.encode("The quick brown fo"))
    joined = list(engine.tokenizer.encode("The quick brown fox jumps"))
    assert joined[: len(own)] != own


def test_a_refusal_of_the_server_names_the_line(backend: Any) -> None:
    @sgl.function
    def program(s):
        s += "Age: " + sgl.gen("age", regex="[0-9")

    with pytest.raises(sgl.ProgramError, match=r"regex.*test_language_engine.py:\d+$"):
        program.run(backend=backend)

    @sgl.function
    def too_long(s):
        s += "word " * 2000 + sgl.gen("x")

    with pytest.raises(sgl.ProgramError, match=r"context length is 512.*at .*:\d+$"):
        too_long.run(backend=backend)


def test_the_offline_engine_answers_as_the_route_does(
    engine: sgl.Engine, runtime: sgl.Runtime
) -> None:
    def plain(answer: Any) -> Any:
        answers = answer if isinstance(answer, list) else [answer]
        for item in answers:
            for name in ("id", "e2e_latency", "cached_tokens"):
                item["meta_info"].pop(name)
        return [[[list(map(_rounded, t)) for t in v] if k.endswith("_logprobs") else v
                 for k, v in item["meta_info"].items()] + [item["text"], item["output_ids"]]
                for item in answers]  # fmt: skip

    def _rounded(value: Any) -> Any:
        return round(value, 4) if isinstance(value, float) else value

    params = {"max_new_tokens": 4, "temperature": 0.0}
    for fields in (
        {"prompt": "The quick", "sampling_params": params},
        {"prompt": ["a", "b"], "sampling_params": params, "return_logprob": True,
         "logprob_start_len": 0},
        {"input_ids": [5, 6, 7], "sampling_params": {**params, "n": 2}},
    ):  # fmt: skip
        assert plain(engine.generate(**fields)) == plain(json.loads(runtime.generate(**fields)))
    with pytest.raises(sgl.BackendError, match="temperature"):
        engine.generate("x", {"temperature": -1})
    with pytest.raises(sgl.BackendError, match="temperature"):
        runtime.generate("x", {"temperature": -1})


def test_streams_and_async_of_the_offline_engine(engine: sgl.Engine, runtime: sgl.Runtime) -> None:
    params = {"max_new_tokens": 6, "temperature": 0.0}
    whole = engine.generate("The quick", params)["text"]
    *_, last = engine.generate("The quick", params, stream=True)
    assert last["text"] == whole

    async def run() -> list[str]:
        one = await engine.async_generate("The quick", params)
        many = await asyncio.gather(*(engine.async_generate("The quick", params) for _ in range(4)))
        streamed = [e async for e in await engine.async_generate("The quick", params, stream=True)]
        remote = "".join([p async for p in runtime.async_generate("The quick", params)])
        return [one["text"], *(m["text"] for m in many), streamed[-1]["text"], remote]

    assert asyncio.run(run()) == [whole] * 7


def test_a_stream_that_is_left_is_aborted(engine: sgl.Engine) -> None:
    stream = engine.generate("x", {"max_new_tokens": 400, "ignore_eos": True}, stream=True)
    next(stream)
    stream.close()
    deadline = time.monotonic() + 60
    while engine.get_server_info()["stats"]["running"] and time.monotonic() < deadline:
        time.sleep(0.01)
    stats = engine.get_server_info()["stats"]
    assert stats["running"] == 0
    assert stats["aborted"] >= 1


def test_the_cache_is_flushed_and_counted(backend: Any) -> None:
    sgl.flush_cache(backend)
    target = getattr(backend, "endpoint", backend)
    target.cache_prefix("The quick brown fox jumps")
    prompt = "The quick brown fox jumps over"
    answer = target.call({"text": prompt, "sampling_params": {"max_new_tokens": 1}})
    assert answer["meta_info"]["cached_tokens"] > 0
    assert sgl.get_server_info(backend)["stats"]["evictable_tokens"] > 0
    sgl.flush_cache(backend)
    assert sgl.get_server_info(backend)["stats"]["evictable_tokens"] == 0


def test_scores_of_the_offline_engine(engine: sgl.Engine, runtime: sgl.Runtime) -> None:
    labels = [engine.tokenizer.encode(text, False)[0] for text in (" yes", " no")]
    arguments = ("Is it lit?", [" Say:", " Tell:"], labels)
    found = engine.score(*arguments, apply_softmax=True)
    assert found.scores == list(found)
    assert [sum(row) for row in found] == pytest.approx([1.0, 1.0])
    assert asyncio.run(engine.async_score(*arguments, apply_softmax=True)) == found
    body = {"query": "Is it lit?", "items": [" Say:", " Tell:"], "label_token_ids": labels,
            "apply_softmax": True}  # fmt: skip
    told = http_request(f"{runtime.url}/v1/score", json=body, api_key="secret").json()
    assert found.prompt_tokens == told["usage"]["prompt_tokens"]
    for row, other in zip(found, told["scores"]):
        assert row == pytest.approx(other, abs=1e-6)
    with pytest.raises(sgl.BackendError, match="label_token_ids has 0 entries"):
        engine.score("a", ["b"])


def test_a_session_of_the_offline_engine(engine: sgl.Engine) -> None:
    params = {"max_new_tokens": 6, "temperature": 0.0}
    number = engine.open_session(1000)
    first = engine.generate("The quick brown fox", params, session_params={"id": number})
    session = {"id": number, "rid": first["meta_info"]["id"]}
    second = engine.generate(" jumps", params, session_params=session)
    ids = [*engine.tokenizer.encode("The quick brown fox"), *first["output_ids"]]
    ids += engine.tokenizer.encode(" jumps", False)
    assert second["meta_info"]["prompt_tokens"] == len(ids)
    alone = engine.generate(input_ids=ids, sampling_params=params)
    assert second["output_ids"] == alone["output_ids"]
    assert engine.close_session(number)
    assert not engine.close_session(number)
    with pytest.raises(sgl.BackendError, match="There is no session"):
        engine.generate("a", params, session_params=session)


def test_hidden_states_of_the_offline_engine(engine: sgl.Engine) -> None:
    """Ids of ``encode``, token by token."""
    params = {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    prompts = ["The quick brown fox", "jumps"]
    answers = engine.generate(prompts, params, return_hidden_states=True)
    for prompt, answer in zip(prompts, answers):
        first, *others = answer["meta_info"]["hidden_states"]
        tokens = [*engine.tokenizer.encode(prompt), *answer["output_ids"][:-1]]
        assert len(first) == answer["meta_info"]["prompt_tokens"]
        assert len(others) == answer["meta_info"]["completion_tokens"] - 1
        for count, state in enumerate([*first, *others], 1):
            alone = engine.encode(input_ids=tokens[:count], normalize=False, pooling="last")
            assert state == pytest.approx(alone["embedding"], abs=1e-4)


def test_the_models_name(backend: Any, engine: sgl.Engine) -> None:
    assert backend.get_model_name() == engine.get_model_name() != ""


def test_embeddings(backend: Any, engine: sgl.Engine) -> None:
    target = getattr(backend, "endpoint", backend)
    one = target.encode("The quick brown fox")
    if backend is not target:  # a Runtime
        assert json.loads(backend.encode("The quick brown fox"))["embedding"] == one["embedding"]
    assert math.hypot(*one["embedding"]) == pytest.approx(1.0, abs=1e-5)
    assert one["meta_info"]["prompt_tokens"] == len(engine.tokenizer.encode("The quick brown fox"))
    both = target.encode(["The quick brown fox", "lazy dog"], pooling="mean", normalize=False)
    want = engine.encode(["The quick brown fox", "lazy dog"], pooling="mean", normalize=False)
    for found, wanted in zip(both, want):
        assert found["embedding"] == pytest.approx(wanted["embedding"], abs=1e-4)
    assert both[0]["embedding"] != pytest.approx(both[1]["embedding"], abs=1e-2)
    with pytest.raises(sgl.BackendError, match="pooling"):
        target.encode("a", pooling="max")
    ids = list(engine.tokenizer.encode("lazy dog"))
    found = asyncio.run(engine.async_encode(input_ids=ids))
    assert found["embedding"] == pytest.approx(engine.encode("lazy dog")["embedding"], abs=1e-5)


def test_shutdown_ends_the_threads_and_later_calls(settings: dict[str, Any]) -> None:
    before = set(threading.enumerate())
    engine = sgl.Engine(**settings)
    assert engine.get_tokenizer().encode("a")
    engine.generate("a", {"max_new_tokens": 2})
    engine.shutdown()
    engine.shutdown()
    assert not [
        t for t in set(threading.enumerate()) - before if t.name in ("sglang-engine", "srt-engine")
    ]
    with pytest.raises(sgl.BackendError, match="has been shut down"):
        engine.generate("a")


def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="did you mean 'page_size'"):
        sgl.Engine(**settings, page_sise=16)
    with pytest.raises(sgl.BackendError, match="no directory"):
        sgl.Engine(model_path="/nowhere/at/all")
    with pytest.raises(sgl.BackendError, match="nowhere"):
        sgl.Runtime(model_path="/nowhere/at/all")


@sgl.function
def read_side_by_side(s, documents):
    s += "Read. "
    forks = s.fork(len(documents))
    forks += lambda i: documents[i]
    forks.join("concate_and_append")
    s += "So:" + sgl.gen("x", 8) + " and" + sgl.gen("y", 8)


def test_documents_are_encoded_side_by_side(backend: Any, engine: sgl.Engine) -> None:
    documents = ["The fox is red. ", "The dog is blue. "]
    state = read_side_by_side.run(documents, backend=backend, temperature=0.0)
    params = {"max_new_tokens": 8, "temperature": 0.0}
    parts = ["Read. ", documents, "So:"]
    assert engine.generate(sampling_params=params, parts=parts)["text"] == state["x"]
    # The second gen finds in the cache all that the first one computed, except the last sampled
    # token.
    meta = state.get_meta_info("y")
    assert meta["prompt_tokens"] - meta["cached_tokens"] <= len(" and") + 9


def test_the_same_text_without_a_thread(backend: Any) -> None:
    @sgl.function
    async def program(s: Any) -> Any:
        s += "The fox" + sgl.gen("a", 6) + sgl.select("b", WORDS)
        forks = s.fork(3)
        forks += lambda i: f" {i}" + sgl.gen("c", 4)
        await forks.ajoin()
        return await s.aget("b")

    @sgl.function
    def blocking(s: Any) -> None:
        s += "The fox" + sgl.gen("a", 6) + sgl.select("b", WORDS)
        forks = s.fork(3)
        forks += lambda i: f" {i}" + sgl.gen("c", 4)
        forks.join()

    async def main() -> Any:
        return await program.arun(backend=backend, temperature=0.0)

    state, plain = asyncio.run(main()), blocking.run(backend=backend, temperature=0.0)
    assert state.text() == plain.text()
    assert state["c"] == plain["c"]
    assert state.ret_value == plain["b"]


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag", "triggers": ["<"],
    "structures": [{"begin": "<a>", "schema": {"type": "boolean"}, "end": "</a>"}],
}  # fmt: skip


@sgl.function
def held_to(s):
    s += "Word: " + sgl.gen("word", regex="[a-c]{3}|über")
    s += "\nAge: " + sgl.gen("age", dtype=int) + "\nWeight: " + sgl.gen("weight", dtype=float)
    s += "\nSure: " + sgl.gen("sure", dtype=bool)
    s += "\nVerdict: " + sgl.gen("verdict", ebnf='root ::= ("not ")? "good"')
    forks = s.fork(3)
    forks += "\nPerson: " + sgl.gen("person", json_schema=PERSON, max_tokens=200)
    forks.join()
    s += "\nCall: <" + sgl.gen("call", structural_tag=TAG, max_tokens=20)


def test_what_the_engine_is_held_to(backend: Any, engine: sgl.Engine) -> None:
    """Constraints hold without a check afterwards: random weights satisfy none by luck."""
    for seed in range(3):
        state = held_to.run(backend=backend, seed=seed, temperature=1.0)
        assert re.fullmatch("[a-c]{3}|über", state["word"])
        assert isinstance(state.value("age"), int)
        assert isinstance(state.value("weight"), float)
        assert isinstance(state.value("sure"), bool)
        assert state["verdict"] in ("good", "not good")
        for person in state["person"]:
            jsonschema.validate(json.loads(person), PERSON)
        meta = state.get_meta_info("verdict")
        assert meta["forced_tokens"] + meta["accepted_tokens"] > 0
        assert meta["forward_passes"] >= 1
        assert state.usage.calls == 9  # no call was repeated
    assert state.text() == held_to.run(backend=engine, seed=2, temperature=1.0).text()


def test_choices_as_wholes(engine: sgl.Engine) -> None:
    """The sum of log-probabilities that the model itself gives."""
    prompt, choices = "The quick brown", [" fox", " dog sleeps", " x"]
    params = {"temperature": 0.0, "choices": choices, "choices_scoring": "whole"}
    found = engine.generate(prompt, params)
    own = len(engine.tokenizer.encode(prompt))
    sums = []
    for choice in choices:
        ids = [*engine.tokenizer.encode(prompt), *engine.tokenizer.encode(choice)]
        meta = engine.generate(
            input_ids=ids, sampling_params={"max_new_tokens": 0},
            return_logprob=True, logprob_start_len=own - 1,
        )["meta_info"]  # fmt: skip
        sums.append(sum(value for value, _, _ in meta["input_token_logprobs"][1:]))
    assert found["meta_info"]["choice_logprobs"] == pytest.approx(sums, abs=1e-4)
    assert found["text"] == choices[sums.index(max(sums))]
