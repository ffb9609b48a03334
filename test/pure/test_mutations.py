"""The simulation can fail: each of these faults, put into the real code, is caught by it."""

from __future__ import annotations

import pytest
from helpers.lru import evicts_least_recently_used
from helpers.mutation import Edit, mutate
from helpers.simulation import simulate
from sglang.srt.core import context
from sglang.srt.core.media import Numbers
from sglang.srt.core.request import Request
from sglang.srt.engine import admission, collect, rows
from sglang.srt.engine.adapters import Adapters
from sglang.srt.engine.collect import Collector
from sglang.srt.engine.draft_model import ModelDrafter
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.engine import Engine
from sglang.srt.engine.masks import DraftMasks
from sglang.srt.engine.planner import Planner
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.store import Store
from sglang.srt.schedule import scheduler

WITHIN = 1500  # histories

MUTATIONS = {
    "a path is unlocked only at its end": [
        Edit(RadixTree, "unlock", "step = step.parent", "step = None"),
    ],
    "a node in use is evicted": [
        Edit(RadixTree, "evict", "if node.locks or node.children or node.used != used or",
             "if node.children or"),
    ],
    "an inner node is evicted": [
        Edit(RadixTree, "_offer", "and not node.children", ""),
        Edit(RadixTree, "evict", "or node.children or", "or"),
    ],
    "a split loses a page": [
        Edit(RadixTree, "_split", "node.pages[:pages])", "node.pages[: pages - 1])"),
    ],
    "a split forgets the locks": [
        Edit(RadixTree, "_split", "upper.locks, upper.used,", "_, upper.used,"),
    ],
    "pins are not counted": [
        Edit(RadixTree, "match", "if node.locks == 0:", "if False:"),
    ],
    "namespaces are ignored": [
        Edit(Store, "match", "context.namespace", "''"),
        Edit(Store, "acquire", "context.namespace", "''"),
    ],
    "spare pages are kept": [
        Edit(Store, "_publish", "self.pool.give(spare)", "pass"),
    ],
    "a cut page table is believed to be whole": [
        Edit(Store, "truncate", "context.sent = min(context.sent, keep)", "pass"),
    ],
    "a released page table is believed to be there": [
        Edit(Store, "release", "context.sent = context.shared =", "context.shared ="),
        Edit(Store, "check", "assert context.sent <= len(context.pages)", "assert True"),
    ],
    "exchanged pages are not sent": [
        Edit(Store, "_publish", "context.sent = context.shared", "pass"),
    ],
    "page tables are never dropped": [
        Edit(Store, "release", "self._dropped.append(context.id)", "pass"),
    ],
    "a failed pass drops its page tables": [
        Edit(Engine, "_fail", "self.store.drop_again(dropped)", "pass"),
    ],
    "a page table lacks what a pass has brought": [
        Edit(Store, "advance", "context.sent = len(context.pages)",
             "context.sent = len(context.pages) + (context.saved % 7 == 3)"),
        Edit(Store, "check", "assert context.sent <= len(context.pages)", "assert True"),
    ],
    "pages are freed twice": [
        Edit(Store, "release", "context.pages[context.shared :])",
             "context.pages[context.shared :] * 2)"),
    ],
    "a planned pass's pages are exchanged": [
        Edit(Store, "_publish", "if planned and", "if False and"),
    ],
    "a pass shows more than it computes": [
        Edit(Store, "_publish", "full = min(length, context.saved) // self.page_size",
             "full = -(-min(length, context.saved) // self.page_size)"),
    ],
    "the plan sees too much room": [
        Edit(Planner, "_view", "len(context.pages) * size - saved", "len(context.pages) * size"),
    ],
    "the match limit is one too long": [
        Edit(Request, "match_limit", "return length - 1", "return length"),
    ],
    "scored positions come from the cache": [
        Edit(Request, "match_limit", "return min(length, outputs.unscored) - 1",
             "return length - 1"),
    ],
    "averaged positions come from the cache": [
        Edit(Request, "match_limit", "return min(length - 1, outputs.unsummed)",
             "return length - 1"),
    ],
    "the random number is of the wrong position": [
        Edit(rows, "_samples", "uniform(generation.seed, index)",
             "uniform(generation.seed, index + 1)"),
    ],
    "penalties forget what was drawn before a retraction": [
        Edit(rows, "_samples", "tokens[request.spec.prompt : len",
             "tokens[request.context.saved : len"),
    ],
    "an end token comes one token early": [
        Edit(rows, "forbidden", "+ ahead >= params.min_new_tokens",
             "+ ahead + 1 >= params.min_new_tokens"),
    ],
    "a draft's penalties know what comes behind it": [
        Edit(rows, "_samples", "len(tokens) - count - pending + i]", "len(tokens) - pending]"),
    ],
    "a mask is that of the draft before": [
        Edit(rows, "_samples", "mask + i, goal", "mask + max(i - 1, 0), goal"),
    ],
    "a matcher is left where the drafts end": [
        Edit(DraftMasks, "_make", "self._matcher.rollback(advanced)", "pass"),
    ],
    "a draft is believed": [
        Edit(Drafts, "verify", "out.checks[kept].token == drafts[kept]", "True"),
    ],
    "rejected drafts stay": [
        Edit(Drafts, "verify", "- count + kept)", ")"),
    ],
    "forced tokens are written past a stop": [
        Edit(Collector, "_force", "if end is not None:", "if False:"),
    ],
    "an abort forgets what was not told of": [
        Edit(Collector, "ended", "*emit(request), ", ""),
    ],
    "a failure forgets what was not told of": [
        Edit(Collector, "failed", "*emit(request), ", ""),
    ],
    "what was told of is told of again": [
        Edit(collect, "emit", "generation.emitted = end", "pass"),
    ],
    "a forced end is written too early": [
        Edit(Collector, "_force", "if token in forbidden(request, goal, self._ends):", "if False:"),
    ],
    "drafts take the memory of others": [
        Edit(Planner, "_room_for", "self.store.available < owed + len(drafts)", "False"),
    ],
    "a draft model's memory is taken from its own pass": [
        Edit(ModelDrafter, "_grow", " and c.id not in present", ""),
    ],
    "copies of a draft model stay": [
        Edit(ModelDrafter, "forget", "if copy is not None:", "if False:"),
    ],
    "an older request gives way": [
        Edit(scheduler, "victims", "item.arrival > older.arrival and item.id not in taken",
             "item.id != older.id"),
        Edit(scheduler, "victims", "-item.arrival", "item.arrival"),
    ],
    "nobody gives way": [
        Edit(scheduler, "victims", "if gained >= need:", "if True:"),
    ],
    "the overdue are not put first": [
        Edit(scheduler, "order", "fcfs(overdue, view) + ORDERS[policy](rest, view)",
             "ORDERS[policy](view.waiting, view)"),
    ],
    "admission skips what does not fit": [
        Edit(scheduler, "_admit", "if need + spare > available:\n            break",
             "if need + spare > available:\n            continue"),
    ],
    "a failed pass is believed": [
        Edit(Engine, "_fail", "keep=False", "keep=True"),
        Edit(Engine, "_fail", 'self.store.flush("failed")', "pass"),
    ],
    "what comes after a failed pass is believed": [
        Edit(Engine, "_fail", "while self._in_flight:", "while False:"),
    ],
    "a pass under way is asked for a score once more": [
        Edit(Request, "plan_outputs", "outputs.unscored = max(", "_ = max("),
    ],
    "the draw of a pass under way is not counted": [
        Edit(Planner, "_add", "request.pending += 1", "pass"),
        Edit(Engine, "_collect", "request.pending -= 1", "pass"),
    ],
    "a row follows another request's": [
        Edit(Planner, "_foresee", "self._follows[number] = last", "self._follows[number] = 0"),
    ],
    "a fork knows what is being drawn": [
        Edit(Engine, "_apply", "if busy is None else busy.known", ""),
    ],
    "a mask is made before it is known what it follows": [
        Edit(Planner, "_waits", "if request.generation.matcher is not None:", "if False:"),
        Edit(Planner, "_waits", "return self.drafts.wanted", "return False and self.drafts.wanted"),
    ],
    "an aborted request stays in the queue": [
        Edit(Planner, "drop", "self.waiting.pop(request.id, None)", "pass"),
    ],
    "an aborted request keeps its memory": [
        Edit(Engine, "_forget", "if context.active:", "if False:"),
    ],
    "remembered matches are never renewed": [
        Edit(Planner, "_match", "if self._matched_at != self.store.tree.version:",
             "self._matched_at = self.store.tree.version\n    if False:"),
    ],
    "the heap is dropped where it is compacted": [
        Edit(RadixTree, "_offer", "[e for e in self._heap if e[2].used == e[0] and e[2].pages]",
             "[]"),
    ],
    "a penalty history has a placeholder in it": [
        Edit(rows, "_samples", "len(tokens) - count - pending + i]", "len(tokens) - count + i]"),
    ],
    "the first row's bias is everybody's": [
        Edit(Planner, "_add", "if rows[-1].sample is not None:",
             """if rows[-1].sample and rows[0].sample:
        import dataclasses, msgspec
        bias = rows[0].sample.params.logit_bias
        params = dataclasses.replace(rows[-1].sample.params, logit_bias=bias)
        rows[-1].sample = msgspec.structs.replace(rows[-1].sample, params=params)
    if rows[-1].sample is not None:"""),
    ],
    "top-k and the like are forgotten after a retraction": [
        Edit(rows, "_samples", "count, pending, mask = len(drafts), request.pending, -1",
             """count, pending, mask = len(drafts), request.pending, -1
    if request.stats.retractions:
        import dataclasses
        params = dataclasses.replace(params, top_k=-1, top_p=1.0, min_p=0.0)"""),
    ],
    "a greedy row keeps the parameters of the one before": [
        Edit(rows, "_samples", "request.plain or Sample(params, top=goal.top)",
             "request.plain or Sample(type(params)(temperature=0.0), top=goal.top)"),
    ],
    "a stop is found one token late": [
        Edit(Collector, "_take", "watch.feed(data)",
             "watch.feed(self._bytes[tokens[known - 1]])"),
    ],
    "nothing is held back for a stop": [
        Edit(collect, "emit", "else generation.watch.held", "else 0"),
    ],
    "the adapter is no part of the namespace": [
        *(Edit(Store, name, "context.namespace)", "context.namespace._replace(adapter=0))")
          for name in ("match", "acquire")),
        Edit(Store, "check", "assert root is self.tree.root(context.namespace)", "assert True"),
    ],
    "the salt is no part of the namespace": [
        *(Edit(Store, name, "context.namespace)", "context.namespace._replace(salt=''))")
          for name in ("match", "acquire")),
        Edit(Store, "check", "assert root is self.tree.root(context.namespace)", "assert True"),
    ],
    "a fork forgets its namespace": [
        Edit(Store, "fork", "tokens, context.namespace,", "tokens, BASE,"),
    ],
    "an adapter leaves while a context has it": [
        Edit(Adapters, "settle", "for leaving in self._leaving if leaving.number not in used]",
             "for leaving in self._leaving]"),
        Edit(Adapters, "settle", "if leaving.number in used]", "if False]"),
    ],
    "KV of an adapter outlives it": [
        Edit(Adapters, "_gone", "self._store.drop_adapter(leaving.number)", "0"),
    ],
    "an adapter loaded again has its old number": [
        Edit(Adapters, "load", "self._next, self._next + 1", "self._next, self._next"),
    ],
    "a pass has more adapters than fit": [
        Edit(Planner, "_adapts", "return False", "pass"),
    ],
    "all images are one": [
        Edit(Numbers, "of", "self._known[key] = number", "number = 0"),
    ],
    "a fork forgets its images": [
        Edit(Store, "fork", "context.head[:length]", "ints()"),
    ],
    "a cut leaves the marks of images": [
        Edit(Store, "truncate", "del context.head[length:]", "pass"),
    ],
    "KV of an image that could not be encoded is found again": [
        Edit(Store, "disown", "self.numbers.forget(key)", "pass"),
    ],
    "a text sees its siblings": [
        Edit(rows, "_row", "row.gap = (segment.sees, segment.start)", "row.start = start"),
    ],
    "texts side by side are cached as if they followed": [
        Edit(context, "key", "if not segments:", "if True:"),
    ],
    "a fork forgets the segments": [
        Edit(Store, "fork", "cut(context.segments, len(tokens))", "()"),
    ],
    "a score is read where not all is seen": [
        Edit(Request, "__post_init__", "self.context.tail + 1", "1"),
    ],
    "a busy refusal leaves its context open": [
        Edit(Engine, "_accept", "self._close_refused(verb)\n        return", "return"),
    ],
    "the queue takes one more than it may": [
        Edit(Engine, "_accept", "queued >= limit", "queued > limit"),
    ],
    "an invalid request leaves its context open": [
        Edit(Engine, "_accept", "self._close_refused(verb)\n        raise", "raise"),
    ],
    "the context length is not looked at": [
        Edit(admission, "verify", "min(info.context_length, ", "max(0, "),
    ],
    "the priority is not looked at": [
        Edit(Planner, "_view", "r.growth, 0, r.spec.priority,", "r.growth, 0, 0,"),
    ],
    "one cached token too few is told of": [
        Edit(Planner, "_admit", "min(request.context.saved, request.spec.prompt)",
             "max(min(request.context.saved, request.spec.prompt) - 1, 0)"),
    ],
    "a wait is measured from the start of the engine": [
        Edit(Planner, "_admit", " - request.spec.received", ""),
    ],
    "all drafts have the log-probability of the first": [
        Edit(collect, "emit", "sample.logprob for", "samples[0].logprob for"),
    ],
    "all drafts have the top tokens of the first": [
        Edit(collect, "emit", "sample.top for", "samples[0].top for"),
    ],
    "all drafts have the probes of the first": [
        Edit(collect, "emit", "sample.probe for", "samples[0].probe for"),
    ],
}  # fmt: skip


def caught(within: int) -> str:
    """Return the message of the first of ``within`` histories that fails, "" where none does."""
    for seed in range(within):
        try:
            simulate(seed)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for edit in MUTATIONS[name]:
        mutate(monkeypatch, edit)
    assert caught(WITHIN), f"{WITHIN} histories pass although {name}"


def test_a_wrong_eviction_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evicts_least_recently_used()
    mutate(monkeypatch, Edit(RadixTree, "_offer", "(node.used,", "(-node.used,"))
    mutate(monkeypatch, Edit(RadixTree, "evict", "node.used != used", "node.used != -used"))
    mutate(monkeypatch, Edit(RadixTree, "check", "{(used,", "{(-used,"))
    assert not evicts_least_recently_used()
    assert not caught(3), "the order of eviction is no matter of correctness"


def test_without_a_mutation_nothing_is_caught() -> None:
    assert caught(50) == ""
