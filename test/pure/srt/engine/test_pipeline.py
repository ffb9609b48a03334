"""Three and more passes in flight, as in a pipeline: a request whose sample is in flight is held,
and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.desk import Desk, generate
from helpers.simulation import expected
from helpers.toy_grammar import ToyGrammars
from sglang.ir.constraint import Constraint


@pytest.mark.parametrize("depth", [3, 4, 5])
@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.5}],
    ids=["greedy", "full"],
)
def test_a_request_is_in_one_sampling_pass_at_a_time(depth: int, params: dict[str, Any]) -> None:
    desk = Desk(depth=depth, chunked_prefill_size=8)
    goal = generate(12, **params)
    prompts = [[n, 7, *range(n)] for n in range(8)]
    requests = [desk.ask(prompt, goal) for prompt in prompts]
    most = 0
    while desk.engine.busy:
        desk.step()
        flight = desk.engine._in_flight
        rows = [row for planned in flight for row in planned.batch.rows]
        sampled = [row.context for row in rows if row.sample is not None]
        assert len(set(sampled)) == len(sampled)
        most = max(most, len(flight))
    assert most == depth - 1, "as many as the stages, after a step"
    for prompt, request in zip(prompts, requests):
        assert desk.tokens(request) == expected(prompt, goal.sampling).tokens
    assert desk.worker.followed == 0
    desk.finish()


def test_the_chunks_of_a_prompt_follow_each_other() -> None:
    desk = Desk(depth=5, chunked_prefill_size=8)
    desk.ask(list(range(40)), generate(3))
    starts = []
    for _ in range(4):
        desk.step()
        starts.append([row.start for row in desk.engine._in_flight[-1].batch.rows])
    assert starts == [[0], [8], [16], [24]]
    assert len(desk.engine._in_flight) == 4, "none of them has been collected"
    desk.run()
    desk.finish()


def test_a_grammar_holds_its_own_request_alone() -> None:
    desk = Desk(depth=4, grammars=ToyGrammars(0), jumps="off", chunked_prefill_size=4)
    bound = generate(9, constraint=Constraint("regex", "5"), ignore_eos=False)
    one, other = desk.ask([3, 1, 4], bound), desk.ask([*range(60)], generate(9))
    most = 0
    while desk.engine.busy or desk.engine.compiling:
        desk.engine._compiling._grammars.pass_time()  # type: ignore[union-attr]
        desk.send()
        desk.step()
        flight = desk.engine._in_flight
        if any(one in planned.parts for planned in flight):
            most = max(most, len(flight))
    assert most >= 3, "passes of the other request are planned beside that of the grammar"
    assert desk.tokens(one) == expected([3, 1, 4], bound.sampling).tokens
    assert desk.tokens(other) == expected([*range(60)], generate(9).sampling).tokens
    desk.finish()
