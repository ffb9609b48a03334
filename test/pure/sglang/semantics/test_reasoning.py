"""Split of reasoning and answer, also while the reply is growing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.semantics.reasoning import MARKERS, split

# Markers in texts of a model: opening, closing.
WRITTEN = {
    **dict.fromkeys(MARKERS, ("<think>", "</think>")),
    "gpt-oss": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "kimi": ("◁think▷", "◁/think▷"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed-oss": ("<seed:think>", "</seed:think>"),
}
ALWAYS = {"deepseek-r1", "gpt-oss", "minimax", "qwen3-thinking", "step3"}


@pytest.mark.parametrize("model_type", MARKERS)
def test_reasoning_and_answer(model_type: str) -> None:
    opening, closing = WRITTEN[model_type]
    whole = f"\n{opening}\nlet me see\n{closing}\n\nBlue. "
    assert split(whole, model_type) == ("let me see", "Blue. ")
    assert split(f"{opening}{closing}Blue.", model_type) == ("", "Blue.")
    assert split(f"{opening}a{closing}b{closing}c", model_type) == ("a", f"b{closing}c")
    assert split(f"{opening} cut off", model_type) == ("cut off", "")
    assert split("", model_type) == ("", "")


@pytest.mark.parametrize("model_type", MARKERS)
def test_a_reply_without_the_opening_marker(model_type: str) -> None:
    closing = WRITTEN[model_type][1]
    if model_type in ALWAYS:
        assert split(f"see{closing}Blue.", model_type) == ("see", "Blue.")
        assert split(" cut off", model_type) == ("cut off", "")
    else:
        assert split(f"see{closing}Blue.", model_type) == ("", f"see{closing}Blue.")
        assert split(" Blue.", model_type) == ("", " Blue.")


def test_an_answer_without_analysis() -> None:
    assert split("<|channel|>final<|message|>Blue.", "gpt-oss") == ("", "Blue.")


def test_an_unknown_model_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"model_type is 'gpt-9'; use one of deepseek-r1, .*qwen3"):
        split("", "gpt-9")


@given(st.data(), st.sampled_from(sorted(MARKERS)))
def test_the_answer_only_grows(data: st.DataObject, model_type: str) -> None:
    """The answer may shrink only by the beginning of an opening marker, which is undecided."""
    opening, closing = WRITTEN[model_type]
    pieces = st.sampled_from([opening, closing, opening[:4], closing[:4], " ", "\n", "a", "<"])
    text = "".join(data.draw(st.lists(pieces, max_size=8)))
    answer = split(text, model_type)[1]
    for end in range(len(text)):
        so_far = split(text[:end], model_type)[1]
        undecided = model_type not in ALWAYS and opening.startswith(text[:end].lstrip())
        assert answer.startswith(so_far) or (undecided and so_far == text[:end])
