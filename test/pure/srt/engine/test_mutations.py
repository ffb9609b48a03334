"""The simulation can fail: each of these faults, put into the real code, is caught by it."""

from __future__ import annotations

import pytest
from helpers.lru import evicts_least_recently_used
from helpers.mutation import (
    Mutation,
    always,
    become,
    before,
    compare,
    constant,
    drop,
    mutate,
    never,
    plus,
)
from helpers.simulation import FINDERS, HISTORIES, simulate
from sglang.srt.core import segments
from sglang.srt.core.media_marks import Numbers
from sglang.srt.core.request import Request, RequestSpec
from sglang.srt.disk import disk_tier
from sglang.srt.disk.disk_tier import DiskTier
from sglang.srt.engine import admission, collect, rows
from sglang.srt.engine.adapter_registry import AdapterRegistry
from sglang.srt.engine.collect import Collector
from sglang.srt.engine.draft_model import ModelDrafter
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.masks import DraftMasks
from sglang.srt.engine.planner import Planner
from sglang.srt.engine.waiting_queue import WaitingQueue
from sglang.srt.interception.parked import Parked
from sglang.srt.interception.tier_claims import TierClaims
from sglang.srt.memory.host_tier import HostTier
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.store import Store
from sglang.srt.schedule import scheduler
from sglang.srt.schedule.capacity import Capacity

WITHIN = HISTORIES

SHARED_BIAS = """
if rows[-1].sample and rows[0].sample:
    import dataclasses, msgspec
    bias = rows[0].sample.params.logit_bias
    params = dataclasses.replace(rows[-1].sample.params, logit_bias=bias)
    rows[-1].sample = msgspec.structs.replace(rows[-1].sample, params=params)
"""
UNCUT_DISTRIBUTION = """
if request.stats.retractions:
    import dataclasses
    params = dataclasses.replace(params, top_k=-1, top_p=1.0, min_p=0.0)
"""

MUTATIONS = {
    "a Fill that was copied whole while it waited never ends": [
        Mutation(Planner, "_load_idle", "not _.context.work", never),
    ],
    "two rows of a pass compute a token again into one page": [
        Mutation(Store, "writes_alone", "_.isdisjoint(_)", always),
    ],
    "a path is unlocked only at its end": [
        Mutation(RadixTree, "unlock", "N = N.parent", become("N = None")),
    ],
    "a node in use is evicted": [
        Mutation(RadixTree, "_top", "_.locks", drop),
        Mutation(RadixTree, "_top", "_.used != _", drop),
    ],
    "an inner node is evicted": [
        Mutation(RadixTree, "_offer", "not _.children", drop),
        Mutation(RadixTree, "_top", "... or _.locks or X or ...", drop),
    ],
    "stops are not searched in what a lost engine drew": [
        Mutation(Collector, "resumed", "_.feed(_)", become("None")),
    ],
    "the text of a lost engine has no length": [
        Mutation(Collector, "resumed", "_.length = _", drop),
    ],
    "a text goes on past its limit": [
        Mutation(RequestSpec, "__post_init__", "_.max_new_tokens - _", plus(1)),
    ],
    "a split loses a page": [
        Mutation(RadixTree, "_split", "RadixNode(..., _.pages[:X])", plus(-1)),
    ],
    "a split forgets the locks": [
        Mutation(RadixTree, "_split", "_.locks, _, _ = X, _, _", constant(0)),
    ],
    "pins are not counted": [
        Mutation(RadixTree, "match", "_.locks == 0", never),
    ],
    "namespaces are ignored": [
        Mutation(Store, "match", "_.namespace", constant("")),
        Mutation(Store, "acquire", "_.namespace", constant("")),
    ],
    "spare pages are kept": [
        Mutation(Store, "_publish", "_.pool.give(_)", drop),
    ],
    "pages are freed twice": [
        Mutation(Store, "release", "_.pool.give(X)", become("X * 2")),
    ],
    "a planned pass's pages are exchanged": [
        Mutation(Store, "_publish", "planned and _", never),
    ],
    "a cut page table is believed to be whole": [
        Mutation(Store, "truncate", "_.sent = _", drop),
    ],
    "a released page table is believed to be there": [
        Mutation(Store, "release", "X = _.shared = _.ready = _.saved = 0", drop),
        Mutation(Store, "check", "_.sent <= len(_.pages)", always),
    ],
    "exchanged pages are not sent": [
        Mutation(Store, "_publish", "_.sent = _", drop),
    ],
    "page tables are never dropped": [
        Mutation(Store, "release", "_._dropped.append(_)", drop),
    ],
    "a failed pass drops its page tables": [
        Mutation(EngineCore, "_fail", "_.drop_again(_)", drop),
    ],
    "a page table lacks what a pass has brought": [
        Mutation(Store, "advance", "_.sent = X", become("X + (context.saved % 7 == 3)")),
        Mutation(Store, "check", "_.sent <= len(_.pages)", always),
    ],
    "a pass shows more than it computes": [
        Mutation(Store, "_publish", "A // B", become("-(-A // B)")),
    ],
    "the plan sees too much room": [
        Mutation(Planner, "_view", "len(_.pages) * _ - X", constant(0)),
    ],
    "the match limit is one too long": [
        Mutation(Request, "match_limit", "return A - 1", become("return A"), nth=2),
    ],
    "scored positions come from the cache": [
        Mutation(Request, "match_limit", "min(A, _.unscored)", become("A")),
    ],
    "averaged positions come from the cache": [
        Mutation(Request, "match_limit", "min(A, _.unsummed)", become("A")),
    ],
    "the random number is of the wrong position": [
        Mutation(rows, "_samples", "Sample(_, uniform(_, X))", plus(1)),
    ],
    "penalties forget what was drawn before a retraction": [
        Mutation(rows, "_samples", "_.history = _[X:_]", become("request.context.saved")),
    ],
    "an end token comes one token early": [
        Mutation(rows, "forbidden", "X >= _.min_new_tokens", plus(1)),
    ],
    "a draft's penalties know what comes behind it": [
        Mutation(rows, "_samples", "_.history = _[_:X]", become("len(tokens) - pending")),
    ],
    "a mask is that of the draft before": [
        Mutation(rows, "_samples", "mask + X", become("max(X - 1, 0)")),
    ],
    "a matcher is left where the drafts end": [
        Mutation(DraftMasks, "_make", "_.rollback(_)", drop),
    ],
    "a draft is believed": [
        Mutation(Drafts, "verify", "_.token == _", always),
    ],
    "rejected drafts stay": [
        Mutation(Drafts, "verify", "_.truncate(_, X)", become("len(request.context.tokens)")),
    ],
    "forced tokens are written past a stop": [
        Mutation(Collector, "_force", "_ is not None", never),
    ],
    "an abort forgets what was not told of": [
        Mutation(Collector, "ended", "[X, _]", drop),
    ],
    "a failure forgets what was not told of": [
        Mutation(Collector, "failed", "[X, _]", drop),
    ],
    "what was told of is told of again": [
        Mutation(collect, "emit", "_.emitted = _", drop),
    ],
    "a forced end is written too early": [
        Mutation(Collector, "_force", "_ in forbidden(...)", never),
    ],
    "drafts take the memory of others": [
        Mutation(Planner, "_room_for", "_.available < _", never),
    ],
    "a draft model's memory is taken from its own pass": [
        Mutation(ModelDrafter, "_grow", "_.id not in _", drop),
    ],
    "copies of a draft model stay": [
        Mutation(ModelDrafter, "forget", "_ is not None", never),
    ],
    "an older request gives way": [
        Mutation(scheduler, "victims", "_.arrival > _.arrival", become("item.id != older.id")),
        Mutation(scheduler, "victims", "_.id not in _", drop),
        Mutation(scheduler, "victims", "sorted(_, key=_, reverse=X)", constant(False)),
    ],
    "nobody gives way": [
        Mutation(scheduler, "victims", "_ >= _", always),
    ],
    "the overdue are not put first": [
        Mutation(scheduler, "order", "fcfs(...) + _", become("ORDERS[policy](view.waiting, view)")),
    ],
    "admission skips what does not fit": [
        Mutation(scheduler, "_admit", "if A > B: break", become("if A > B: continue")),
    ],
    "a failed pass is believed": [
        Mutation(EngineCore, "_fail", "_.release(_, keep=X)", constant(True)),
        Mutation(EngineCore, "_fail", "_.flush(...)", drop),
    ],
    "what comes after a failed pass is believed": [
        Mutation(EngineCore, "_fail", "while X: ...", never),
    ],
    "a pass under way is asked for a score once more": [
        Mutation(Request, "plan_outputs", "_.unscored = _", drop),
    ],
    "the draw of a pass under way is not counted": [
        Mutation(Planner, "_add", "_.pending += 1", drop),
        Mutation(EngineCore, "_collect", "_.pending -= 1", drop),
    ],
    "a row follows another request's": [
        Mutation(Planner, "_foresee", "_._follows[_] = X", constant(0)),
    ],
    "a pipeline plans a request whose sample is in flight": [
        Mutation(Planner, "_foresee", "_.stages == 1", always),
    ],
    "requests overtake a retracted one whose sample is in flight": [
        Mutation(Planner, "_view", "takewhile(...)", become("queued")),
    ],
    "what is throttled is never let go": [
        Mutation(Planner, "plan", "withheld or throttled", become("withheld")),
    ],
    "what drains in a later pass than a failed one is lost": [
        Mutation(EngineCore, "_fail", "_.requeue(...)", drop),
    ],
    "a fork knows what is being drawn": [
        Mutation(EngineCore, "_apply", "len(_) if _ is None else _", become("len(parent.tokens)")),
    ],
    "a mask is made before it is known what it follows": [
        Mutation(Planner, "_waits", "_.matcher is not None", never),
        Mutation(Planner, "_waits", "_.wanted(...)", never),
    ],
    "an aborted request stays in the queue": [
        Mutation(WaitingQueue, "remove", "_.pop(...)", drop),
    ],
    "an aborted request keeps its memory": [
        Mutation(EngineCore, "_forget", "_.active", never),
    ],
    "remembered matches are never renewed": [
        Mutation(Planner, "_match", "_.clear()", drop),
    ],
    "the heap is dropped where it is compacted": [
        Mutation(RadixTree, "_offer", "[_ for _ in _ if _]", become("[]")),
    ],
    "a penalty history has a placeholder in it": [
        Mutation(rows, "_samples", "_.history = _[_:X]", become("len(tokens) - count + i")),
    ],
    "the first row's bias is everybody's": [
        Mutation(Planner, "_add", "if _.sample is not None: ...", before(SHARED_BIAS)),
    ],
    "top-k and the like are forgotten after a retraction": [
        Mutation(rows, "_samples", "plain = _", before(UNCUT_DISTRIBUTION)),
    ],
    "a greedy row keeps the parameters of the one before": [
        Mutation(rows, "_samples", "_ or Sample(X)", become("type(X)(temperature=0.0)")),
    ],
    "a stop is found one token late": [
        Mutation(Collector, "_take", "_.feed(X)", become("self._bytes[tokens[known - 1]]")),
    ],
    "nothing is held back for a stop": [
        Mutation(collect, "emit", "0 if _ else X", constant(0)),
    ],
    "the adapter is no part of the namespace": [
        Mutation(Store, "match", "A.namespace", become("A.namespace._replace(adapter=0)")),
        Mutation(Store, "acquire", "A.namespace", become("A.namespace._replace(adapter=0)")),
        Mutation(Store, "check", "_ is _.root(_)", always),
    ],
    "the salt is no part of the namespace": [
        Mutation(Store, "match", "A.namespace", become("A.namespace._replace(salt='')")),
        Mutation(Store, "acquire", "A.namespace", become("A.namespace._replace(salt='')")),
        Mutation(Store, "check", "_ is _.root(_)", always),
    ],
    "a fork forgets its namespace": [
        Mutation(Store, "fork", "_.namespace", become("BASE")),
    ],
    "an adapter leaves while a context has it": [
        Mutation(AdapterRegistry, "settle", "_.number not in _", always),
        Mutation(AdapterRegistry, "settle", "_.number in _", never),
    ],
    "KV of an adapter outlives it": [
        Mutation(AdapterRegistry, "_gone", "_.drop_adapter(_)", constant(0)),
    ],
    "an adapter loaded again has its old number": [
        Mutation(AdapterRegistry, "load", "A._next + 1", become("A._next")),
    ],
    "a pass has more adapters than fit": [
        Mutation(Planner, "_adapts", "return False", drop),
    ],
    "all images are one": [
        Mutation(Numbers, "of", "_._known[_] = N", become("N = 0")),
    ],
    "a fork forgets its images": [
        Mutation(Store, "fork", "_.head[:_]", become("ints()")),
    ],
    "a cut leaves the marks of images": [
        Mutation(Store, "truncate", "del _.head[_:]", drop),
    ],
    "KV of an image that could not be encoded is found again": [
        Mutation(Store, "disown", "_.forget(_)", drop),
    ],
    "a text sees its siblings": [
        Mutation(rows, "_row", "_.gap = _", become("row.start = start")),
    ],
    "texts side by side are cached as if they followed": [
        Mutation(segments, "key", "not segments", always),
    ],
    "a fork forgets the segments": [
        Mutation(Store, "fork", "cut(...)", become("()")),
    ],
    "a score is read where not all is seen": [
        Mutation(Request, "__post_init__", "_.tail + 1", constant(1)),
    ],
    "a busy refusal leaves its context open": [
        Mutation(EngineCore, "_accept", "_._close_refused(_)", drop, nth=1),
    ],
    "the queue takes one more than it may": [
        Mutation(EngineCore, "_accept", "_ >= _", compare(">")),
    ],
    "an invalid request leaves its context open": [
        Mutation(EngineCore, "_accept", "_._close_refused(_)", drop, nth=2),
    ],
    "the context length is not looked at": [
        Mutation(admission, "verify", "min(_.context_length, A)", become("A")),
    ],
    "the priority is not looked at": [
        Mutation(Planner, "_view", "_.priority", constant(0)),
    ],
    "a wait is measured from the start of the engine": [
        Mutation(Planner, "_admit", "A - _.received", become("A")),
    ],
    "one cached token too few is told of": [
        Mutation(Planner, "_admit", "min(A, B)", become("max(min(A, B) - 1, 0)")),
    ],
    "a generation that goes on samples as at its beginning": [
        Mutation(rows, "_samples", "index = A + X", constant(0)),
    ],
    "penalties forget what precedes a tool's result": [
        Mutation(rows, "_samples", "_.history = _[X:_]", become("request.spec.prompt")),
    ],
    "a generation that goes on has its least length again": [
        Mutation(rows, "forbidden", "A + X.spec.carried + _", constant(0)),
    ],
    "a grammar begins anew behind a tool's result": [
        Mutation(admission, "replayed", "not _.advance(_)", never),
    ],
    "a request that resumes is a newcomer": [
        Mutation(WaitingQueue, "put", "_.arrived", become("request.spec.received")),
    ],
    "the queue is in the order of messages": [
        Mutation(WaitingQueue, "put", "_._unsorted = _", drop),
    ],
    "a host page is given away in the pass that stores it": [
        Mutation(HostTier, "save", "_._locked.append(_)", become("self.tree.unlock(node)")),
    ],
    "a host page is given away in the pass that loads it": [
        Mutation(HostTier, "held", "_._locked.append(_)", become("self.tree.unlock(node)")),
    ],
    "copies of a failed pass are believed": [
        Mutation(HostTier, "failed", "_.prune(_)", drop),
    ],
    "the disk knows no namespaces": [
        Mutation(disk_tier, "space_of", "_.salt", constant("")),
    ],
    "KV of an adapter is kept on disk": [
        Mutation(disk_tier, "kept", "_.adapter", constant(0)),
    ],
    "a slot counts though its job failed": [
        Mutation(DiskTier, "_was_read", "_.copied * _", become("len(job.pages)")),
    ],
    "host memory knows no namespaces": [
        Mutation(Store, "_copy", "_.namespace(_)", become("BASE")),
        Mutation(Store, "load", "_.namespace", become("BASE")),
    ],
    "host pages of an adapter outlive it": [
        Mutation(Store, "drop_adapter", "_.drop_adapter(_)", drop),
    ],
    "a path is stored in the wrong order": [
        Mutation(RadixTree, "path", "_.pages", become("edge.pages[::-1]")),
    ],
    "one page more counts than is loaded": [
        Mutation(Store, "load", "_.saved = _.ready = X", plus(1)),
    ],
    "the rest of a page that was computed in part is skipped": [
        Mutation(Store, "load", "_.saved // _", become("-(-context.saved // self.page_size)")),
    ],
    "what hangs below a copy that failed is lost": [
        Mutation(RadixTree, "prune", "_.extend(_)", drop),
    ],
    "copies that failed stay in the tree": [
        Mutation(RadixTree, "prune", "del _.children[_]", drop),
    ],
    "a claim outlives its context": [
        Mutation(EngineCore, "_close", "_.end(_)", drop),
    ],
    "a claim outlives its pause": [
        Mutation(Planner, "_admit", "_.parked.admitted(_)", drop),
    ],
    "a claim that ends still counts in the tree": [
        Mutation(Parked, "end", "_.unclaim(_)", drop),
    ],
    "a second claim leaves the first one in the tree": [
        Mutation(Parked, "park", "self.end(_)", drop),
    ],
    "a split forgets the claims": [
        Mutation(RadixTree, "_split", "_.claims = X", constant(0)),
    ],
    "what had a claim is never evicted": [
        Mutation(RadixTree, "_count_claim", "_._offer(_)", drop),
    ],
    "a claim gives up pages in use": [
        Mutation(Parked, "_leaf", "not _.locks", drop),
    ],
    "a claim gives up the middle of a path": [
        Mutation(Parked, "_leaf", "not _.children", drop),
    ],
    "claims are dropped where all leaves have them": [
        Mutation(Parked, "_choose", "return X", become("oldest"), 3),
    ],
    "a claim that ends still counts in a lower tier": [
        Mutation(TierClaims, "drop", "_.unclaim(_)", drop),
    ],
    "a claim follows its path into a lower tier without counting": [
        Mutation(RadixTree, "claim_below", "_.claims += 1", drop),
    ],
    "a claim gives up pages of a lower tier in use": [
        Mutation(TierClaims, "_leaf", "not _.locks", drop),
    ],
    "a claim gives up the middle of a path of a lower tier": [
        Mutation(TierClaims, "_leaf", "not _.children", drop),
    ],
    "preserved KV stops everybody": [
        Mutation(Planner, "plan", "_, _, _ = X, False, _", become("withheld")),
    ],
    "the pages of claims are counted twice": [
        Mutation(Parked, "end", "_ -= _", drop),
    ],
    "a task group counts by its members": [
        Mutation(Capacity, "admits", "_ == _ or _ != _", always),
    ],
    "a target is ignored": [
        Mutation(Capacity, "admits", "_ <= _", always),
    ],
    "the laxest target of a group counts": [
        Mutation(Capacity, "join", "min(A, B)", become("max(target, targets.get(group, target))")),
    ],
    "what is held for a target is passed for ever": [
        Mutation(scheduler, "_admit", "if _.overtaken >= _: ...", drop),
    ],
    "a hint is lost when its request is retracted": [
        Mutation(Planner, "retract", "_.stats.retractions += 1",
                 before("request.scheduling.hint = None")),
    ],
    "an application's calls do not keep its place": [
        Mutation(scheduler, "app", "_.arrival >> _", constant(0)),
    ],
    "all drafts have the log-probability of the first": [
        Mutation(collect, "emit", "[X.logprob for _ in _]", become("samples[0]")),
    ],
    "progress of a prompt goes on behind its first token": [
        Mutation(Collector, "collect", "spec.report_prompt and _", become("spec.report_prompt")),
    ],
    "progress of texts side by side counts what a row sees": [
        Mutation(Collector, "collect", "row.end", become("row.start + len(row.tokens)")),
    ],
    "all drafts have the top tokens of the first": [
        Mutation(collect, "emit", "[X.top for _ in _]", become("samples[0]")),
    ],
    "all drafts have the probes of the first": [
        Mutation(collect, "emit", "[X.probe for _ in _]", become("samples[0]")),
    ],
}  # fmt: skip


# A history that catches what few others do: it is tried first. Where the simulation has changed and
# it catches nothing, all are tried.
TRIED_FIRST = {
    "two rows of a pass compute a token again into one page": 92037309,
    "a Fill that was copied whole while it waited never ends": 2984,
    "KV of an image that could not be encoded is found again": 856,
    "the rest of a page that was computed in part is skipped": 451,
    "preserved KV stops everybody": 864,
    "a host page is given away in the pass that stores it": 277,
    "the text of a lost engine has no length": 263,
    "a draft model's memory is taken from its own pass": 234,
    "host memory knows no namespaces": 226,
    "copies of a failed pass are believed": 196,
    "texts side by side are cached as if they followed": 171,
    "stops are not searched in what a lost engine drew": 151,
    "requests overtake a retracted one whose sample is in flight": 141,
    "the heap is dropped where it is compacted": 120,
    "a cut leaves the marks of images": 93,
    "what drains in a later pass than a failed one is lost": 92,
    "an inner node is evicted": 79,
    "a fork knows what is being drawn": 59,
    "a generation that goes on samples as at its beginning": 58,
    "a split forgets the claims": 57,
    "claims are dropped where all leaves have them": 45,
    "KV of an adapter is kept on disk": 44,
    "what had a claim is never evicted": 43,
    "the disk knows no namespaces": 37,
    "what hangs below a copy that failed is lost": 37,
    "a slot counts though its job failed": 33,
    "copies that failed stay in the tree": 33,
    "all images are one": 32,
    "top-k and the like are forgotten after a retraction": 26,
    "a forced end is written too early": 25,
    "what is held for a target is passed for ever": 25,
    "a draft's penalties know what comes behind it": 25,
    "the context length is not looked at": 25,
    "a claim gives up pages in use": 15,
    "an adapter leaves while a context has it": 13,
    "exchanged pages are not sent": 13,
    "a pass has more adapters than fit": 13,
    "a claim gives up the middle of a path": 13,
    "the overdue are not put first": 12,
    "averaged positions come from the cache": 12,
    "drafts take the memory of others": 12,
}


def caught(within: int, first: int = 0) -> str:
    """Return the message of a history that fails, "" where none of ``within`` does. ``first``: the
    seed that is tried before the others."""
    for seed in (first, *range(within)):
        try:
            simulate(seed)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    assert caught(WITHIN, TRIED_FIRST.get(name, 0)), f"{WITHIN} histories pass although {name}"


def test_a_wrong_eviction_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evicts_least_recently_used()
    mutate(
        monkeypatch,
        Mutation(RadixTree, "_offer", "_.heappush(_, (X, ...))", become("-X")),
        Mutation(RadixTree, "_offer", "_.used == X", become("-X")),
        Mutation(RadixTree, "_top", "_.used != X", become("-X")),
        Mutation(RadixTree, "check", "{(X, ...) for _ in _}", become("-X")),
    )
    assert not evicts_least_recently_used()
    assert not caught(3), "the order of eviction is no matter of correctness"


def test_first_histories_are_those_of_mutations_and_the_suite() -> None:
    assert TRIED_FIRST.keys() <= MUTATIONS.keys()
    assert {seed for seed in TRIED_FIRST.values() if seed >= WITHIN} == {*FINDERS}


@pytest.mark.slow
def test_without_a_mutation_nothing_is_caught() -> None:
    assert caught(50) == ""
