"""Wrong verbs of spaces: each is refused by name, and nothing else of the space is spoilt."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from helpers.fake_worker import VOCAB
from helpers.space_desk import GREEDY, TEXT, Program, SpaceDesk, data, filled, finish, refused
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import ints
from sglang.srt.core.space_messages import (
    MOST_HANDLES,
    AllocPages,
    CopyTokens,
    ExportPages,
    ForwardTokens,
    FreePages,
    ImportPages,
    OpenSpace,
    PrefixPages,
    ReleaseExport,
)
from sglang.srt.core.work import STEP_VERBS
from sglang.srt.engine.loop import VerbCosts, affordable
from sglang.srt.spaces import space_memory
from sglang.srt.spaces.mask_runs import MOST_BITS


def _forward(program: Program, **changes: Any) -> ForwardTokens:
    fields = {"tokens": [1], "visible": [0, 1], "written": [8], **changes}
    packed: dict[str, Any] = {k: data(v) if isinstance(v, list) else v for k, v in fields.items()}
    return ForwardTokens(program.space, **{"request": 40, **packed})


REFUSED: list[tuple[str, Any, str]] = [
    ("alloc twice", lambda p: AllocPages(p.space, data([0])), "handle 0 is in use"),
    (
        "alloc a handle twice",
        lambda p: AllocPages(p.space, data([20, 20])),
        "handle 20 is given twice",
    ),
    ("alloc below 0", lambda p: AllocPages(p.space, data([-1])), "handle -1 is outside"),
    ("alloc beyond", lambda p: AllocPages(p.space, data([MOST_HANDLES])), "is outside [0,"),
    ("alloc bytes", lambda p: AllocPages(p.space, b"abc"), "handles has 3 bytes"),
    (
        "alloc too much",
        lambda p: AllocPages(p.space, data(range(100, 300))),
        "the program may have",
    ),
    ("free unknown", lambda p: FreePages(p.space, data([77])), "handle 77 is not in use"),
    ("free far", lambda p: FreePages(p.space, data([2**31 - 1])), "is not in use"),
    ("free twice", lambda p: FreePages(p.space, data([0, 0])), "a handle is given twice"),
    ("free below 0", lambda p: FreePages(p.space, data([-5])), "handle -5 is not in use"),
    (
        "copy counts",
        lambda p: CopyTokens(p.space, data([0, 1]), data([8])),
        "2 tokens are copied to 1",
    ),
    ("copy from empty", lambda p: CopyTokens(p.space, data([9]), data([8])), "slot 9 holds no KV"),
    (
        "copy from unknown",
        lambda p: CopyTokens(p.space, data([99]), data([8])),
        "handle 99 is not in use",
    ),
    (
        "copy to unknown",
        lambda p: CopyTokens(p.space, data([0]), data([99])),
        "handle 99 is not in use",
    ),
    (
        "copy to one twice",
        lambda p: CopyTokens(p.space, data([0, 1]), data([8, 8])),
        "written twice",
    ),
    ("export nothing", lambda p: _export(p, []), "map no page"),
    ("export twice", lambda p: _export(p, [0, 0]), "one page twice"),
    ("export unknown", lambda p: _export(p, [55]), "handle 55 is not in use"),
    ("export without a name", lambda p: _export(p, [0], ""), "the name has 0 characters"),
    ("import unknown", lambda p: ImportPages(p.space, 40, "none", 50), "there is no export 'none'"),
    ("release unknown", lambda p: ReleaseExport(p.space, 40, "none"), "there is no export 'none'"),
    ("prefix into used", lambda p: PrefixPages(p.space, 40, data([1, 2]), 0), "handle 0 is in use"),
    (
        "prefix of no token",
        lambda p: PrefixPages(p.space, 40, data([VOCAB]), 50),
        "outside the vocabulary",
    ),
    ("prefix below 0", lambda p: PrefixPages(p.space, 40, data([1]), -3), "handle -3 is outside"),
    ("no tokens", lambda p: _forward(p, tokens=[]), "has no tokens"),
    ("a token beyond", lambda p: _forward(p, tokens=[VOCAB]), f"token id {VOCAB} is outside"),
    ("a token below", lambda p: _forward(p, tokens=[-1]), "token id -1 is outside"),
    ("see an empty slot", lambda p: _forward(p, visible=[9]), "slot 9 holds no KV"),
    ("see an unknown slot", lambda p: _forward(p, visible=[70]), "handle 70 is not in use"),
    ("see a negative slot", lambda p: _forward(p, visible=[-1]), "handle -1 is not in use"),
    ("see a slot twice", lambda p: _forward(p, visible=[0, 0]), "seen or written twice"),
    ("write what is seen", lambda p: _forward(p, written=[0]), "seen or written twice"),
    ("write an unknown slot", lambda p: _forward(p, written=[70]), "handle 70 is not in use"),
    (
        "write one twice",
        lambda p: _forward(p, tokens=[1, 2], written=[8, 8]),
        "seen or written twice",
    ),
    ("write too few", lambda p: _forward(p, tokens=[1, 2]), "2 tokens are written to 1 slots"),
    (
        "too few positions",
        lambda p: _forward(p, tokens=[1, 2], written=[8, 9], positions=[1]),
        "give one each",
    ),
    ("a position beyond", lambda p: _forward(p, positions=[4096]), "position 4096 is outside"),
    ("a position below", lambda p: _forward(p, positions=[-1]), "position -1 is outside"),
    ("a short mask", lambda p: _forward(p, mask=b"\x01\x01"), "the mask has 2 bytes"),
    (
        "a short bit mask of ids",
        lambda p: _forward(p, sample=GREEDY, allowed=b"\x01"),
        "allowed has 1 bytes",
    ),
    ("a probe beyond", lambda p: _forward(p, probe=(VOCAB,)), "outside the vocabulary"),
    (
        "a history beyond",
        lambda p: _forward(p, sample=GREEDY, history=[VOCAB]),
        "outside the vocabulary",
    ),
    ("top below", lambda p: _forward(p, top=-3), "top is -3"),
    ("top beyond", lambda p: _forward(p, top=VOCAB + 1), f"top is {VOCAB + 1}"),
    ("a uniform beyond", lambda p: _forward(p, sample=GREEDY, uniform=1.0), "uniform is 1.0"),
    (
        "a temperature below",
        lambda p: _forward(p, sample=SamplingParams(temperature=-1.0)),
        "temperature",
    ),
    ("follow nothing", lambda p: _forward(p, follows=33), "follows is 33"),
    ("follow without a sample", lambda p: _forward(p, follows=0), "follows is 0"),
    ("a request again", lambda p: _forward(p, request=0), "request 0 has no answer yet"),
    ("a request below", lambda p: _forward(p, request=-2), "request is -2"),
    ("hidden states", lambda p: _forward(p, keep=(0,)), "keeps no hidden states"),
]


def _export(program: Program, handles: list[int], name: str = "name") -> Any:
    return ExportPages(program.space, 40, data(handles), name)


@pytest.mark.parametrize("name", [name for name, _, _ in REFUSED])
def test_wrong_verbs_are_refused_and_spoil_nothing(name: str) -> None:
    ((make, text),) = [(make, text) for own, make, text in REFUSED if own == name]
    desk = SpaceDesk(capacity=256)
    program, other = filled(desk), filled(desk)
    program.alloc(8, 9)
    verb = make(program)
    assert not program.send(verb)
    failed = program.failed[-1]
    assert text in failed.message
    assert failed.request == (-1 if "no answer yet" in text else getattr(verb, "request", -1))
    assert failed.code == ("overloaded" if "may have" in text else "invalid")
    program.forward([7], list(range(8)), [8], sample=GREEDY)
    desk.run()
    assert len(program.answers) == 2
    assert len(other.answers) == 1
    finish(desk)


def test_other_programs_pages_cannot_be_named() -> None:
    desk = SpaceDesk()
    program, other = filled(desk), desk.program()
    desk.run()
    for verb in (
        ForwardTokens(other.space, 0, data([1]), visible=data([0])),
        FreePages(other.space, data([0])),
        CopyTokens(other.space, data([0]), data([1])),
    ):
        assert "is not in use" in refused(other, partial(other.send, verb))
    program.forward([7], list(range(8)), top=1)
    desk.run()
    finish(desk)


def test_the_step_of_a_loop_is_held_against_the_same_rules() -> None:
    """A forward that goes on from the last one's view is looked up in another way."""
    desk = SpaceDesk()
    program = filled(desk)
    program.alloc(8, 9)
    view = list(range(8))
    wrong = {
        "2 tokens are written to 1 slots": {"tokens": [1, 2]},
        "seen or written twice": {"written": [3]},
        "handle 70 is not in use": {"written": [70]},
        "handle -1 is not in use": {"written": [-1]},
    }
    for text, more in wrong.items():
        verb = _forward(program, visible=view, **more)
        assert text in refused(program, partial(program.send, verb))
    program.forward([7], view, [8], sample=GREEDY)
    program.forward([7], [*view, 8], [9], sample=GREEDY)
    desk.run()
    program.export("shared", 9)
    assert "slot 9 is exported" in refused(
        program, lambda: program.send(_forward(program, visible=[*view, 8], written=[9]))
    )
    program.free(3)
    assert "handle 3 is not in use" in refused(
        program, lambda: program.send(_forward(program, visible=[*view, 8], written=[9]))
    )
    finish(desk)


def test_verbs_cost_what_they_hold() -> None:
    """A step takes some of many large verbs, and the rest later."""
    desk = SpaceDesk()
    few, many = ints([1]).tobytes(), ints([1] * 4000).tobytes()
    costs = VerbCosts(desk.engine.store.contexts)
    assert costs.of(ForwardTokens(1, 0, few)) < costs.of(ForwardTokens(1, 0, few, visible=many))
    assert costs.of(AllocPages(1, few)) < costs.of(AllocPages(1, many))
    mask = ForwardTokens(1, 0, few, mask=bytes(MOST_BITS // 8))
    assert STEP_VERBS // 2 < costs.of(mask) < 2 * STEP_VERBS
    assert affordable([mask] * 4, desk.engine.store.contexts) == 1


def test_spaces_are_opened_once_and_with_what_is_there() -> None:
    desk = SpaceDesk()
    program = desk.program()
    text = refused(program, lambda: desk.send(OpenSpace(program.space)))
    assert "is open already" in text
    wrong = desk.program(adapter="poet")
    assert wrong.ended is not None
    assert "no adapter 'poet' is loaded" in wrong.ended.message
    wrong = desk.program(most=-1)
    assert wrong.ended is not None
    assert "most is -1" in wrong.ended.message
    capped = desk.program(most=4)
    assert capped.alloc(0, 1, 2, 3)
    assert "the program may have 4" in refused(capped, lambda: capped.alloc(4))
    finish(desk)


@pytest.mark.parametrize("page_size", [4])
def test_pages_of_several_tokens_are_filled_in_their_order(page_size: int) -> None:
    desk = SpaceDesk(page_size=page_size)
    program = desk.program()
    program.alloc(5, 2, 9)
    slots = [*range(20, 24), *range(8, 12), *range(36, 40)]
    program.forward(TEXT[:6], written=slots[:6])
    request = program.forward([7], slots[:6], slots[6:7], sample=GREEDY)
    desk.run()
    program.forward([program.answers[request].token], slots[:7], slots[7:8], sample=GREEDY)
    program.forward([3, 3], slots[:8], top=1)
    desk.run()
    for more, text in (
        ({"visible": [20, 22], "written": [36]}, "that do not fill their pages in order"),
        ({"visible": slots[:8], "written": [37]}, "that do not fill their pages in order"),
        ({"visible": slots[:6], "written": []}, "KV that is kept nowhere"),
        ({"visible": slots[:4], "tokens": [1, 2], "written": [8, 9], "mask": b"\x01\x02"}, "masks"),
    ):
        assert text in refused(program, partial(program.send, _forward(program, **more)))
        assert "--page-size 1" in program.failed[-1].message
    finish(desk)


def test_windows_refuse_views_with_holes() -> None:
    desk = SpaceDesk()
    desk.engine.door._facts = msgspec.structs.replace(desk.engine.info, windowed=True)
    program = filled(desk)
    program.alloc(8, 9)
    program.forward([7], list(range(8)), [8], top=1)
    program.copy([8], [9])
    program.forward([7], [*range(8), 9], top=1)
    for more in ({"visible": [0, 2]}, {"visible": [0, 1], "positions": [5]}):
        text = refused(program, partial(program.send, _forward(program, written=[], **more)))
        assert "the view has a hole between positions" in text
    mask = np.packbits([[1, 0, 1]], axis=1, bitorder="little").tobytes()
    text = refused(program, lambda: program.send(_forward(program, written=[], mask=mask)))
    assert "a sliding window, which no mask can have" in text
    desk.run()
    finish(desk)


def test_one_owner_leaves_names_of_exports_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_memory, "MOST_EXPORTS", 3)
    monkeypatch.setattr(space_memory, "ALL_EXPORTS", 5)
    desk = SpaceDesk()
    ann, more = (filled(desk, owner="ann", namespace="ann") for _ in range(2))
    bob, eve = (filled(desk, owner=name, namespace=name) for name in ("bob", "eve"))
    desk.run()
    for number, program in enumerate((ann, more, ann)):
        program.export(f"name {number}", number)
    desk.run()
    for program in (ann, more):
        assert "this tenant have 3 exports" in refused(program, partial(program.export, "x", 3))
    assert not bob.failed
    bob.export("name 0", 0)
    bob.export("name 1", 1)
    assert "all programs 5, of 3 and 5" in refused(eve, lambda: eve.export("name", 0))
    desk.send(ReleaseExport(ann.space, 90, "name 0"))
    eve.export("name", 0)
    ann.alloc(50)
    finish(desk)
    assert not eve.failed[1:]
