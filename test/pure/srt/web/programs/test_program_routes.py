"""Programs over HTTP: what /v1/submit runs equals what /generate answers, step by step."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.program_graphs import (
    Plain,
    branch,
    chain,
    fork,
    gen,
    graph,
    join,
    map_reduce,
    random_graph,
    spoiled,
    stream,
    text,
    transform,
    value,
)
from sglang.ir.choices import METHODS
from sglang.semantics.choice_requests import choice_requests
from sglang.srt.config import Config

HOSTILE = 400


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("toy"), Config.of(max_program_steps=200)) as server:
        yield server


def followed(served: Served, body: Plain, **more: Any) -> tuple[Plain, list[Plain]]:
    """The ids of a submission and its events, over one stream."""
    sent = {"graph": body, "stream": True, **more}
    with served.client.stream("POST", "/v1/submit", json=sent) as reply:
        assert reply.status_code == 200, reply.read()
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    ids, *events = map(json.loads, lines[:-1])
    return ids, events


def events_in(text: str) -> list[Plain]:
    """The JSON events of a stream."""
    return [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]


def done(events: list[Plain]) -> dict[int, Plain]:
    return {event["step"]: event for event in events if event["event"] == "done"}


def generated(served: Served, **body: Any) -> Any:
    reply = served.client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def same(ours: Plain, theirs: Plain) -> bool:
    """Whether two answers are equal but for names, times and what the cache had."""
    varying = {"id", "e2e_latency", "cached_tokens", "forward_passes"}
    kept = [{k: v for k, v in each["meta_info"].items() if k not in varying}
            for each in (ours, theirs)]  # fmt: skip
    return (
        kept[0] == kept[1]
        and ours["text"] == theirs["text"]
        and ours["output_ids"] == theirs["output_ids"]
    )


def test_a_chain_answers_what_generate_does(served: Served) -> None:
    _, events = followed(served, chain(3, 8))
    prompt, found = "", done(events)
    for i in range(3):
        prompt += f" part {i}: "
        sampling = {"max_new_tokens": 8, "temperature": 0}
        theirs = generated(served, text=prompt, sampling_params=sampling)
        event = found[2 * i + 1]
        assert same(event["answers"][0], theirs)
        assert event["prompt"] == {
            "chars": len(prompt), "sha256": sha256(prompt.encode()).hexdigest(),
        }  # fmt: skip
        prompt += theirs["text"]
    assert events[-1] == {"event": "end", "state": "done"}
    assert 4 not in found


def test_seeds_logprobs_and_completions_are_those_of_generate(served: Served) -> None:
    settings = {"max_new_tokens": 6, "temperature": 1, "sampling_seed": 5, "n": 3}
    extra = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    step = {"op": "gen", "name": "x", "body": {"sampling_params": settings, **extra}}
    ids, events = followed(served, graph(stream(0, text("several "), step, gen("y"))))
    theirs = generated(served, text="several ", sampling_params=settings, **extra)
    answers = done(events)[1]["answers"]
    assert len(answers) == 3
    assert all(same(a, b) for a, b in zip(answers, theirs))
    got = {"session_id": ids["session_id"], "semantic_var_id": ids["variables"]["x"]}
    reply = served.client.post("/v1/get", json=got).json()
    assert reply == {"value": [answer["text"] for answer in theirs], "state": "ready"}
    follow = generated(served, text=f"several {theirs[0]['text']}",
                       sampling_params={"max_new_tokens": 4, "temperature": 0})  # fmt: skip
    assert same(done(events)[2]["answers"][0], follow)


def test_a_look_at_the_next_token_appends_nothing(served: Served) -> None:
    look = gen("x", 0, return_logprob=True, top_logprobs_num=3)
    _, events = followed(served, graph(stream(0, text("look "), look, gen("y"))))
    found = done(events)
    assert len(found[1]["answers"][0]["meta_info"]["output_token_logprobs"]) == 1
    assert found[2]["prompt"] == found[1]["prompt"]


def test_a_choose_decides_as_the_client_does(served: Served) -> None:
    options = [" red", " green", " blue one"]
    for method in [name for name, m in METHODS.items() if not m.generates]:  # no grammars here
        step = {"op": "choose", "name": "c", "options": options, "method": method}
        _, events = followed(served, graph(stream(0, text("The lamp is"), step, gen("y"))))
        requests = choice_requests("The lamp is", {}, {}, options, METHODS[method])
        body = next(requests)
        while True:
            try:
                body = requests.send(generated(served, **body))
            except StopIteration as end:
                decision = end.value
                break
        found = done(events)[1]["decision"]
        assert found["text"] == decision.text
        mine, theirs = found["meta"], json.loads(json.dumps(decision.meta))
        mine["usage"].pop("cached_tokens")
        theirs["usage"].pop("cached_tokens")
        assert mine == theirs


def test_branches_values_and_joins_make_the_prompts_they_say(served: Served) -> None:
    body = graph(
        stream(0, text("a "), fork(1, 2), join(1001, 2001, made=("p",)), value(1001, "p"),
               value(2001, "p", {"op": "strip"}), gen("q")),
        branch(1, 1, 0, text("left "), gen("p")),
        branch(2, 1, 1, text("right "), gen("p")),
    )  # fmt: skip
    found = done(followed(served, body)[1])
    left, right = (found[n]["answers"][0]["text"] for n in (1001, 2001))
    prompt = f"a {left}{right.strip()}"
    assert found[5]["prompt"]["sha256"] == sha256(prompt.encode()).hexdigest()


def test_parallel_texts_are_parts_of_generate(served: Served) -> None:
    body = graph(
        stream(0, text("p "), fork(1, 2), join(1000, 2000, mode="concate_and_append"),
               text(" t"), gen("q")),
        branch(1, 1, 0, text("left ")),
        branch(2, 1, 1, text("right ")),
    )  # fmt: skip
    found = done(followed(served, body)[1])
    theirs = generated(served, parts=["p ", ["left ", "right "], " t"],
                       sampling_params={"max_new_tokens": 4, "temperature": 0})  # fmt: skip
    assert same(found[4]["answers"][0], theirs)


def test_a_prompt_with_placeholders_is_a_program(served: Served) -> None:
    body = {"prompt": "Do {{task}}: {{code}} Test: {{test}}", "placeholders": [
        {"name": "task", "in_out": False, "value": "a snake game"},
        {"name": "code", "in_out": True, "sampling_params": {"max_new_tokens": 5,
                                                             "temperature": 0}},
        {"name": "test", "in_out": True, "transforms": "strip",
         "sampling_params": {"max_new_tokens": 5, "temperature": 0}}]}  # fmt: skip
    ids = served.client.post("/v1/submit", json=body).json()
    got = {}
    for name in ("code", "test"):
        query = {"session_id": ids["session_id"], "semantic_var_id": ids["variables"][name],
                 "criteria": "latency"}  # fmt: skip
        got[name] = served.client.post("/v1/get", json=query).json()["value"]
    greedy = {"max_new_tokens": 5, "temperature": 0}
    code = generated(served, text="Do a snake game: ", sampling_params=greedy)["text"]
    test = generated(served, text=f"Do a snake game: {code} Test: ", sampling_params=greedy)
    assert got == {"code": code, "test": test["text"].strip()}


def test_events_are_replayed_and_grow(served: Served) -> None:
    ids, first = followed(served, chain(2, 24), grown=True)
    grown = [e for e in first if e["event"] == "grown" and e["step"] == 1]
    whole = done(first)[1]["answers"][0]["text"]
    assert grown
    assert all(whole.startswith(event["text"]) for event in grown)
    query = {"session_id": ids["session_id"], "submission_id": ids["submission_id"],
             "stream": True}  # fmt: skip
    reply = served.client.post("/v1/get", json=query)
    again = events_in(reply.text)
    assert again == [event for event in first if event["event"] != "grown"]


def test_a_value_is_streamed(served: Served) -> None:
    ids = served.client.post("/v1/submit", json={"graph": chain(1, 16)}).json()
    query = {"session_id": ids["session_id"], "semantic_var_id": ids["variables"]["x0"],
             "stream": True}  # fmt: skip
    reply = served.client.post("/v1/get", json=query)
    last = events_in(reply.text)
    assert last[-1]["state"] == "ready"
    assert all(last[-1]["value"].startswith(each["text"]) for each in last[:-1])


def test_an_error_of_the_engine_names_the_step(served: Served) -> None:
    body = chain(2, 4)
    body["streams"][0]["steps"][0] |= {"text": "word " * 2000, "at": ["p.py", 3]}
    body["streams"][0]["steps"][1] |= {"at": ["p.py", 4]}
    ids, events = followed(served, body)
    failed = [event for event in events if event["event"] == "failed"]
    assert failed[0]["code"] == "context_length_exceeded"
    assert failed[0]["step"] == failed[-1]["cause_step"]
    assert events[-1] == {"event": "end", "state": "failed"}
    query = {"session_id": ids["session_id"], "semantic_var_id": ids["variables"]["x1"]}
    error = is_error(served.client.post("/v1/get", json=query), 400)
    assert error["code"] == "context_length_exceeded"
    assert "p.py:" in error["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Give prompt and placeholders, or graph"),
        ({"graph": chain(1), "prompt": "x"}, "Give prompt"),
        ({"graph": chain(101)}, "203 steps and streams; at most 200"),
        ({"graph": graph(stream(0, value(4, "x")))}, "step 0 (value): variable 'x' of step 4"),
        ({"graph": graph(stream(0, {"op": "gen", "body": {"sampling_params": {"top_p": 7}}}))},
         "step 0 (gen): top_p is 7"),
        ({"graph": graph(stream(0, {"op": "gen", "body": {"sampling_params": {"topp": 7}}}))},
         "step 0 (gen): Unknown sampling parameter 'topp'"),
        ({"graph": graph(stream(0, {"op": "nothing"}))}, "$.graph.streams[0].steps[0]"),
        ({"graph": graph(stream(0, {"op": "text", "text": 4}))},
         "$.graph.streams[0].steps[0].text"),
        ({"graph": graph(stream(0, {"op": "tool", "name": "t", "tool": "f", "where": "server"}))},
         "step 0 (tool 't'): where is server, and this server has no toolbox"),
        ({"graph": chain(1), "criteria": {"x0": "soon"}}, "criteria is 'soon'"),
        ({"graph": chain(1), "criteria": {"x9": "latency"}}, "criteria names 'x9'"),
        ({"graph": graph(stream(0, gen("x"), transform("y", 0, "x", {"op": "regex",
                                                                     "pattern": "(?=a)"})))},
         "step 1 (transform 'y')"),
        ({"prompt": "{{x}}", "placeholders": []}, "no placeholder"),
        ({"prompt": "{{x}}", "placeholders": [{"name": "x", "in_out": 3}]},
         "$.placeholders[0].in_out"),
    ],
)  # fmt: skip
def test_refusals_name_the_place(served: Served, body: Plain, message: str) -> None:
    before = len(list(served.state.programs.sessions.all()))
    error = is_error(served.client.post("/v1/submit", json=body), 400)
    assert message in error["message"]
    assert len(list(served.state.programs.sessions.all())) == before


def test_hostile_graphs_are_refused_or_run(served: Served) -> None:
    golden, refused = served.client.golden(), 0
    for seed in range(HOSTILE):
        chance = random.Random(seed)
        body = spoiled(random_graph(seed % 40, chance.randint(0, 4)), chance)
        reply = served.client.post("/v1/submit", json={"graph": body})
        if reply.status_code != 200:
            is_error(reply, 400)
            refused += 1
            continue
        ids = reply.json()
        served.client.delete(f"/v1/session/{ids['session_id']}").raise_for_status()
    assert HOSTILE / 2 < refused < HOSTILE
    assert served.client.golden() == golden
    served.client.idle()


def test_unknown_ids_are_not_found(served: Served) -> None:
    session = served.client.post("/v1/session").json()["session_id"]
    for path, body in (
        ("/v1/get", {"session_id": "no", "semantic_var_id": "v"}),
        ("/v1/get", {"session_id": session, "semantic_var_id": "v"}),
        ("/v1/get", {"session_id": session, "submission_id": "s", "stream": True}),
        ("/v1/set", {"session_id": session, "semantic_var_id": "v", "value": "x"}),
        ("/v1/cancel", {"session_id": session, "submission_id": "s"}),
        ("/v1/submit", {"session_id": "no", "graph": chain(1)}),
        ("/v1/submit", {"graph": graph(stream(0, {"op": "value", "of": {"var": "v"}}))}),
    ):
        assert is_error(served.client.post(path, json=body), 404)["code"] == "not_found"
    assert served.client.delete(f"/v1/session/{session}").json() == {"status": "ok"}
    is_error(served.client.delete(f"/v1/session/{session}"), 404)
    is_error(served.client.post("/v1/get", json={"session_id": session}), 404)


def test_a_get_that_is_too_late_is_408(served: Served) -> None:
    ids = served.client.post("/v1/submit", json={"prompt": "{{x}}", "placeholders": [
        {"name": "x", "in_out": False}]}).json()  # fmt: skip
    query = {"session_id": ids["session_id"], "semantic_var_id": ids["variables"]["x"],
             "timeout": 0.05}  # fmt: skip
    assert is_error(served.client.post("/v1/get", json=query), 408)["code"] == "request_timeout"
    error = is_error(served.client.post("/v1/get", json={**query, "stream": True}), 400)
    assert (error["param"], "a stream has no timeout" in error["message"]) == ("timeout", True)
    given = {name: query[name] for name in ("session_id", "semantic_var_id")}
    given["value"] = [1, "a"]
    setter = threading.Thread(target=served.client.post, args=("/v1/set",), kwargs={"json": given})
    setter.start()
    found = served.client.post("/v1/get", json={**query, "timeout": 30}).json()
    setter.join()
    assert found == {"value": [1, "a"], "state": "ready"}


def test_the_end_of_a_session_ends_a_run_a_lost_client_does_not(served: Served) -> None:
    with served.open({"graph": chain(60, 8), "stream": True}, "/v1/submit") as connection:
        assert b"200" in connection.recv(1 << 12)
    [run] = [
        run for session in served.state.programs.sessions.all() for run in session.runs.values()
        if not run.over
    ]  # fmt: skip
    served.client.delete(f"/v1/session/{run.session.id}").raise_for_status()  # type: ignore[attr-defined]
    served.client.idle()
    assert run.over


def test_map_reduce_over_http_has_one_message_from_the_client(served: Served) -> None:
    _, events = followed(served, map_reduce(6), criteria={"all": "latency"})
    assert events[-1]["state"] == "done"
    assert sum(event["event"] == "done" for event in events) == 7


def test_tenants_have_sessions_of_their_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"name": n, "key": f"key-{n}"} for n in ("a", "b")]))
    with serve_text(tmp_path, Config.of(api_keys_file=str(keys))) as served:
        a, b = ({"Authorization": f"Bearer key-{n}"} for n in ("a", "b"))
        ids = served.client.post("/v1/submit", json={"graph": chain(1)}, headers=a).json()
        query = {"session_id": ids["session_id"], "semantic_var_id": ids["variables"]["x0"]}
        assert served.client.post("/v1/get", json=query, headers=a).status_code == 200
        for path in ("/v1/get", "/v1/cancel"):
            is_error(served.client.post(path, json=query, headers=b), 404)
        is_error(served.client.post("/v1/set", json={**query, "value": "x"}, headers=b), 404)
        more = {"graph": chain(1), "session_id": ids["session_id"]}
        is_error(served.client.post("/v1/submit", json=more, headers=b), 404)
        path = f"/v1/session/{ids['session_id']}"
        is_error(served.client.delete(path, headers=b), 404)
        assert served.client.delete(path, headers=a).status_code == 200
        assert all(t.open == 0 for t in served.state.tenants._tenants.values())


def test_known_text_is_computed_while_a_tool_is_awaited(served: Served) -> None:
    tool = {"op": "tool", "name": "t", "tool": "calc"}
    body = graph(stream(0, text("a long beginning " * 20), tool, gen("y")))
    ids = served.client.post("/v1/submit", json={"graph": body}).json()
    [run] = [
        session.runs[ids["submission_id"]] for session in served.state.programs.sessions.all()
        if session.id == ids["session_id"]
    ]  # fmt: skip
    served.client.idle()
    assert run.states == {1: "running"}
    query = {"session_id": ids["session_id"]}
    given = {**query, "semantic_var_id": ids["variables"]["t"], "value": " 42"}
    served.client.post("/v1/set", json=given).raise_for_status()
    wanted = {**query, "semantic_var_id": ids["variables"]["y"]}
    assert served.client.post("/v1/get", json=wanted).status_code == 200
    events = {**query, "submission_id": ids["submission_id"], "stream": True}
    found = done(events_in(served.client.post("/v1/get", json=events).text))
    meta = found[2]["answers"][0]["meta_info"]
    assert meta["cached_tokens"] >= 0.9 * meta["prompt_tokens"]


def test_running_programs_are_seen(served: Served) -> None:
    """The page's view and the metrics know a program that waits for a client's tool."""
    tool = {"op": "tool", "name": "t", "tool": "calc", "at": ["p.py", 3]}
    body = graph(stream(0, text("see "), gen("x"), tool, gen("y")))
    sent = {"graph": body, "criteria": {"y": "latency"}}
    ids = served.client.post("/v1/submit", json=sent).json()
    query = {"session_id": ids["session_id"], "semantic_var_id": ids["variables"]["x"]}
    served.client.post("/v1/get", json=query)
    [seen] = [p for p in served.client.get("/live").json()["programs"]
              if p["id"] == ids["submission_id"]]  # fmt: skip
    calls = {call["name"]: call for call in seen["calls"]}
    assert [calls[name]["state"] for name in ("x", "t", "y")] == ["done", "running", "waiting"]
    assert calls["y"]["reads"] == [calls["t"]["step"]]
    assert [calls[name]["stage"] for name in ("x", "t", "y")] == [2, 1, 0]
    assert all(call["critical"] and call["criteria"] == "latency" for call in calls.values())
    assert calls["t"]["at"] == "p.py:3"
    metrics = served.client.get("/metrics").text
    assert 'sglang:num_submitted_programs{model_name="sglang-tiny"} ' in metrics
    given = {"semantic_var_id": ids["variables"]["t"], "value": "42"}
    served.client.post("/v1/set", json={**query, **given}).raise_for_status()
    final = {**query, "semantic_var_id": ids["variables"]["y"]}
    assert served.client.post("/v1/get", json=final).status_code == 200
    ended = served.client.get("/live").json()["programs"]
    assert ids["submission_id"] not in [program["id"] for program in ended]
