"""FlashInfer's plans made quicker, and the modules that a model needs, over a stand-in."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from sglang.srt.attention.flashinfer_modules import (
    ModuleNeeds,
    build,
    largest,
    quick_plans,
    specs,
)


def package(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> ModuleType:
    """A package flashinfer; ``modules``: names and source of its files, or their contents."""
    library = ModuleType("flashinfer")
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    for name, contents in modules.items():
        path = f"flashinfer.{name.replace('_', '.')}"
        module = ModuleType(path)
        if isinstance(contents, str):
            exec(contents, vars(module))
        else:
            vars(module).update(contents)
        monkeypatch.setitem(sys.modules, path, module)
    return library


def test_plans_make_no_tensor_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """``max`` over a tensor in the package's files is one operation; over others it is Python's."""
    source = "def plan(x, *y): return max(x).item(), max(y), max(0, len(y))"
    library = package(monkeypatch, decode=source, prefill=source)
    looks: list[int] = []
    each = torch.Tensor.__iter__
    monkeypatch.setattr(torch.Tensor, "__iter__", lambda x: looks.append(len(x)) or each(x))
    lengths = torch.tensor([3, 9, 4], dtype=torch.int32)
    for quick in (False, True):
        if quick:
            assert quick_plans(library) is library
        found = [sys.modules[f"flashinfer.{n}"].plan(lengths, 5, 7) for n in ("decode", "prefill")]
        assert found == [(9, 7, 2)] * 2
        assert bool(looks) != quick
        looks.clear()


def test_a_package_without_these_files_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    library = package(monkeypatch)
    assert quick_plans(library) is library


def test_largest_is_max() -> None:
    assert largest(3, 5) == 5
    assert largest([2, 1]) == 2
    assert largest(["a", "bb"], key=len) == "bb"
    assert largest([], default=7) == 7
    assert int(largest(torch.tensor([1, 8, 2]))) == 8
    with pytest.raises(ValueError, match="empty"):
        largest([])


class Spec:
    def __init__(self, name: str) -> None:
        self.name, self.is_compiled = name, False


def compiler(monkeypatch: pytest.MonkeyPatch, compile: Callable[[list[Spec]], None]) -> None:
    """A package whose specs are named for their arguments and compiled by ``compile``."""

    def generator(kind: str) -> Callable[..., Spec]:
        return lambda *arguments: Spec("_".join([kind, *map(str, arguments)]))

    def build_jit_specs(wanted: list[Spec], verbose: bool, skip_prebuilt: bool) -> None:
        assert (verbose, skip_prebuilt) == (False, True)
        compile(wanted)

    package(
        monkeypatch,
        jit={
            "build_jit_specs": build_jit_specs,
            "gen_batch_prefill_module": generator("prefill"),
            "gen_batch_decode_module": generator("decode"),
        },
        jit_cascade={"gen_cascade_module": generator("cascade")},
    )


@pytest.mark.parametrize(
    ("options", "windows", "kinds"),
    [
        ((True, False), (0,), ["prefill_fa2 False False"]),
        ((False, False), (0,), ["prefill_fa2 False False", "decode False False"]),
        ((True, True), (0, 4096, 512), ["prefill_fa2 False True", "prefill_fa2 True True"]),
        ((False, True), (512,), ["prefill_fa2 True True", "decode True True"]),
        ((True, False, True), (0,), ["prefill_fa2 False False", "prefill_fa3 False False"]),
        (
            (False, True, True),
            (512,),
            ["prefill_fa2 True True", "prefill_fa3 True True", "decode True True"],
        ),
    ],
)
def test_modules_follow_the_layers(
    options: tuple[bool, ...], windows: tuple[int, ...], kinds: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """``options``: tensor cores, a soft cap, FlashAttention-3."""
    compiler(monkeypatch, lambda wanted: None)
    tensor_cores, capped, *fa3 = options
    found = specs(ModuleNeeds(torch.bfloat16, 128, tensor_cores, windows, capped, *fa3))
    dtypes = "torch.bfloat16_torch.bfloat16_torch.bfloat16_torch.int32_128_128_0"
    names = [each.name.replace(f"_{dtypes}_", " ").replace("_True", " True") for each in found]
    names = [name.replace("_False", " False") for name in names]
    want = [kind + (" False" if "prefill" in kind else "") for kind in kinds]
    assert names == ["cascade", *want]


def test_building_shows_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, counts = threading.Event(), []

    def compile(wanted: list[Spec]) -> None:
        wanted[0].is_compiled = True
        assert looked.wait(20.0)
        for spec in wanted:
            spec.is_compiled = True

    def seen(count: int) -> None:
        counts.append(count)
        looked.set()

    compiler(monkeypatch, compile)
    assert build([Spec("a"), Spec("b"), Spec("c")], seen) > 0.0
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[-1] == 3


def test_a_compiler_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(wanted: list[Spec]) -> None:
        raise RuntimeError("Ninja build failed")

    compiler(monkeypatch, compile)
    with pytest.raises(RuntimeError, match="Ninja build failed"):
        build([Spec("a")], lambda count: None)
