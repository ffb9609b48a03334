"""Requests with grammars in the engine: how they begin, jump, end, wait and fail."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import EOS, TOKEN_BYTES, VOCAB
from helpers.toy_grammar import bits
from sglang.ir.constraint import Constraint
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Close,
    Control,
    Done,
    Failed,
    Open,
    PromptChunk,
    Tokens,
)
from sglang.srt.engine.collect import MAX_FORCED
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, CompilerBusy, GrammarError, Matcher
from sglang.srt.requests.completion.readout import refused
from sglang.srt.web.exchange.error_replies import error_response

FREE = frozenset(range(VOCAB))
STEPS: dict[str, list[set[int]]] = {
    "whole": [{1}, {2}, {3}],
    "late": [{1, 2}, {3}, {4}, {5, 6}],
    "dead": [{1, 2}, set()],
    "none": [],
}


class Steps:
    """Allows a set of tokens at each position, then the end. ``broken`` names a method that
    raises."""

    path = "steps"

    def __init__(self, steps: list[set[int]], broken: str = "") -> None:
        self.steps, self.broken, self.at = steps, broken, 0
        self.words: list[int] = []

    def matcher(self) -> Matcher:
        self._call("matcher")
        return Steps(self.steps, self.broken)

    def _call(self, name: str) -> None:
        if name == self.broken:
            raise RuntimeError("a bug")
        if name + " limit" == self.broken:
            raise GrammarError("too much work")

    @property
    def accepting(self) -> bool:
        return self.at == len(self.steps)

    @property
    def finished(self) -> bool:
        return self.accepting

    def mask(self) -> bytes:
        self._call("mask")
        return bits(frozenset({EOS} if self.accepting else self.steps[self.at]))

    def advance(self, token: int) -> bool:
        self._call("advance")
        if self.accepting or token not in self.steps[self.at]:
            return False
        self.at += 1
        self.words.append(token)
        return True

    def forced(self, limit: int) -> list[int]:
        self._call("forced")
        out: list[int] = []
        for step in self.steps[self.at : self.at + limit]:
            if len(step) != 1:
                break
            out += step
        return out

    def draft(self, limit: int) -> list[int]:
        self._call("draft")
        return [min(step) for step in self.steps[self.at : self.at + limit] if step]

    def rewrite(self) -> tuple[int, list[int]]:
        """The last token again, and what is forced."""
        forced = self.forced(1 << 20)
        last = self.words[-1:]
        return (len(last), [*last, *forced]) if forced else (0, [])

    def rollback(self, count: int) -> None:
        self._call("rollback")
        self.at -= count
        del self.words[len(self.words) - count :]

    def fork(self) -> Matcher:
        raise AssertionError("not needed")


class Shop:
    """Grammars by name; "slow" ones are never ready, "name!method" break in a method."""

    def __init__(self) -> None:
        self.asked: list[Future[CompiledGrammar]] = []

    @property
    def counts(self) -> dict[str, int]:
        return {}

    def submit(self, constraint: Constraint) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        self.asked.append(future)
        name, _, broken = constraint.text.partition("!")
        if name == "late compiler":
            future.set_exception(CompilerBusy("regex was not compiled within 20 s. Try again."))
        elif name == "bad":
            future.set_exception(GrammarError("regex[0]: bad"))
        elif name != "slow":
            future.set_result(Steps(STEPS[name], broken))
        return future


def ask(desk: Desk, number: int, name: str, **changes: Any) -> None:
    goal = generate(constraint=Constraint("regex", name) if name else None, **changes)
    desk.send(Open(number, ints([7, 8, number]).tobytes()), Advance(number, number, goal))


def ended(desk: Desk, number: int) -> tuple[list[int], Done | Failed]:
    *tokens, last = desk.events[number]
    assert isinstance(last, Done | Failed)
    drawn: list[int] = []
    for event in tokens:
        assert isinstance(event, Tokens)
        del drawn[len(drawn) - event.taken :]
        drawn += event.tokens
    return drawn, last


def test_a_text_that_is_all_forced_needs_no_pass() -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, "whole")
    tokens, done = ended(desk, 1)
    assert tokens == [1, 2, 3]
    assert isinstance(done, Done)
    stats = done.stats
    assert (done.reason, stats.forced_tokens, stats.completion_tokens) == ("stop", 3, 3)
    assert stats.forward_passes == 0
    assert desk.worker.passes == 0
    assert not desk.engine.store.contexts[1].active


@pytest.mark.parametrize(("jumps", "passes"), [("exact", 2), ("off", 4), ("string", 2)])
def test_forced_tokens_cost_no_pass_of_their_own(jumps: str, passes: int) -> None:
    desk = Desk(grammars=Shop(), jumps=jumps)
    ask(desk, 1, "late")
    desk.run()
    tokens, done = ended(desk, 1)
    assert tokens[1:3] == [3, 4]
    assert isinstance(done, Done)
    assert (done.reason, done.stats.completion_tokens) == ("stop", 4)
    assert done.stats.forward_passes == passes
    assert done.stats.forced_tokens == (0 if jumps == "off" else 2)
    assert desk.engine.store.contexts[1].tokens[3:].tolist() == tokens


def test_limits_and_stops_hold_among_forced_tokens() -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, "whole", most=2)
    ask(desk, 2, "whole", stop=(TOKEN_BYTES[2].decode(),))
    ask(desk, 3, "whole", stop_token_ids=(2,))
    ask(desk, 4, "whole", stop_token_ids=(2,), min_new_tokens=3)
    desk.run()
    results = {n: ended(desk, n) for n in (1, 2, 3, 4)}
    assert results[1][0] == results[2][0] == results[3][0] == [1, 2]
    assert [r.reason for _, r in results.values() if isinstance(r, Done)] == [
        "length", "stop", "stop", "error",
    ]  # fmt: skip
    assert results[4][0] == [1], "an end that is forced too early cannot be written"


def test_stops_hold_among_rewritten_tokens() -> None:
    desk = Desk(grammars=Shop(), jumps="string")
    ask(desk, 1, "late", stop=(TOKEN_BYTES[3].decode(),))
    ask(desk, 2, "late", stop_token_ids=(3,))
    ask(desk, 3, "late", most=2)
    desk.run()
    for number, reason in ((1, "stop"), (2, "stop"), (3, "length")):
        tokens, done = ended(desk, number)
        assert tokens[1:] == [3]
        assert isinstance(done, Done)
        assert (done.reason, done.stats.completion_tokens) == (reason, 2)
        assert desk.engine.store.contexts[number].tokens[3:].tolist() == tokens


def test_a_rewrite_spares_tokens_of_an_earlier_request() -> None:
    desk = Desk(grammars=Shop(), jumps="string")
    goal = generate(constraint=Constraint("regex", "late"), since=3)
    desk.send(Open(1, ints([7, 8, 1, 2]).tobytes()), Advance(1, 1, goal))
    desk.run()
    tokens, done = ended(desk, 1)
    assert tokens[:2] == [3, 4]
    assert isinstance(done, Done)
    assert (done.reason, done.stats.completion_tokens) == ("stop", 3)
    assert desk.engine.store.contexts[1].tokens.tolist() == [7, 8, 1, 2, *tokens]


def test_a_dead_end_keeps_the_text() -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, "dead")
    ask(desk, 2, "")
    desk.run()
    tokens, done = ended(desk, 1)
    assert len(tokens) == 1
    assert isinstance(done, Done)
    assert done.reason == "error"
    assert "no token can be sampled" in done.message
    assert isinstance(ended(desk, 2)[1], Done)


@pytest.mark.parametrize("method", ["mask", "advance", "forced", "rollback"])
def test_a_broken_grammar_fails_alone(method: str) -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, f"late!{method}")
    ask(desk, 2, "late")
    ask(desk, 3, "")
    desk.run()
    _, end = ended(desk, 1)
    assert "the grammar failed: RuntimeError: a bug" in end.message
    assert desk.engine.stats.failed_passes == 0
    for number in (2, 3):
        assert isinstance(ended(desk, number)[1], Done)


def test_a_grammar_without_a_matcher_fails_alone() -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, "late!matcher")
    ask(desk, 2, "late")
    desk.run()
    _, end = ended(desk, 1)
    assert isinstance(end, Failed)
    assert (end.code, end.message) == ("internal", "RuntimeError: a bug")
    assert isinstance(ended(desk, 2)[1], Done)


def test_the_prompts_log_probabilities_come_before_forced_text() -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, "whole", score_from=1)
    desk.run()
    prompt, *tokens, done = desk.events[1]
    assert isinstance(prompt, PromptChunk)
    assert (prompt.start, len(prompt.logprobs)) == (1, 2)
    assert [token for event in tokens if isinstance(event, Tokens) for token in event.tokens] == [
        1, 2, 3,
    ]  # fmt: skip
    assert isinstance(done, Done)
    assert done.stats.forward_passes == 1


def test_a_long_forced_text_is_written_in_parts() -> None:
    STEPS["long"] = [{3}] * (2 * MAX_FORCED + 5)
    desk = Desk(grammars=Shop())
    ask(desk, 1, "long", most=1000)
    assert len(desk.events[1]) == 1, "other requests have their turn"
    desk.run()
    tokens, done = ended(desk, 1)
    assert tokens == [3] * (2 * MAX_FORCED + 5)
    assert isinstance(done, Done)
    assert (done.stats.forward_passes, done.stats.forced_tokens) == (2, 2 * MAX_FORCED)


@pytest.mark.parametrize("method", ["mask", "forced", "advance"])
def test_a_limit_of_a_step_ends_with_the_text_so_far(method: str) -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, f"late!{method} limit")
    desk.run()
    _, end = ended(desk, 1)
    assert isinstance(end, Done)
    assert end.reason == "error"
    assert "too much work" in end.message


def test_a_drafter_that_breaks_drafts_nothing() -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, "late!draft", top=0)
    desk.run()
    _, end = ended(desk, 1)
    assert isinstance(end, Done)
    assert (end.reason, end.stats.drafted_tokens, end.stats.completion_tokens) == ("stop", 0, 4)


def test_what_cannot_be_compiled_is_invalid() -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, "bad")
    assert desk.events[1] == [Failed(1, "invalid", "regex[0]: bad")]
    bare = Desk()
    ask(bare, 1, "whole")
    (failed,) = bare.events[1]
    assert isinstance(failed, Failed)
    assert failed.code == "invalid"
    assert "this engine has no grammars" in failed.message


def test_a_compiler_that_is_late_is_not_the_clients_fault() -> None:
    desk = Desk(grammars=Shop())
    ask(desk, 1, "late compiler")
    (failed,) = desk.events[1]
    assert isinstance(failed, Failed)
    assert failed.code == "overloaded"
    response = error_response(refused(failed))
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    assert desk.engine.store.contexts[1].active is False


def test_a_request_can_be_closed_while_its_grammar_is_made() -> None:
    shop = Shop()
    desk = Desk(grammars=shop)
    ask(desk, 1, "slow")
    assert not desk.engine.busy
    assert desk.engine.compiling == 1
    assert desk.engine.stats_now()["compiling"] == 1
    desk.send(Control(9, "flush"))
    assert not desk.replies[-1].ok
    desk.send(Close(1))
    (done,) = desk.events[1]
    assert isinstance(done, Done)
    assert done.reason == "abort"
    assert desk.engine.compiling == 0
    assert shop.asked[0].cancelled(), "nobody else waits: it need not be made"
    assert not desk.engine.store.contexts


def test_requests_whose_grammar_is_being_made_count_as_waiting() -> None:
    desk = Desk(grammars=Shop(), max_queued_requests=2)
    for number in (1, 2, 3):
        ask(desk, number, "slow")
    (failed,) = desk.events[3]
    assert isinstance(failed, Failed)
    assert failed.code == "busy"


def test_drafts_are_truncated_at_the_first_that_was_not_drawn() -> None:
    STEPS["guess"] = [{1, 2}, set(FREE) - {EOS}, set(FREE) - {EOS}, {5, 6}]
    desk, plain = Desk(grammars=Shop()), Desk(grammars=Shop(), jumps="off")
    for one in (desk, plain):
        ask(one, 1, "guess", temperature=1.0, seed=3)
        one.run()
    (tokens, done), (want, _) = ended(desk, 1), ended(plain, 1)
    assert tokens == want
    assert isinstance(done, Done)
    assert done.stats.drafted_tokens > 0
    assert done.stats.accepted_tokens < done.stats.drafted_tokens
    assert desk.engine.store.contexts[1].tokens[3:].tolist() == tokens
