"""Questions about images: ours against transformers, one question at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.harness.ablations import FULL, opened
from benchmark.harness.claim import Scale
from benchmark.image_qa.author import Author
from benchmark.image_qa.claim import CLAIM, QUESTIONS
from benchmark.image_qa.model import EYES, checkpoint

ITEMS = 2 * QUESTIONS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("T", tmp_path_factory.mktemp("llava"), "float32")


def test_both_sides_read_and_write_the_same(model: Path) -> None:
    items = CLAIM.items(Scale(ITEMS), 3)
    author = Author(model)
    theirs = author.run(CLAIM, items, "latency")
    author.close()
    ours = opened(FULL, model, dtype="float32", max_total_tokens=4096)
    try:
        found = ours.run(CLAIM, items, "latency")
    finally:
        ours.close()
    assert found.answers == theirs.answers
    assert len(set(found.answers)) > 1
    assert found.prompt_tokens == theirs.prompt_tokens
    assert found.completion_tokens == theirs.completion_tokens
    # A picture is computed for the first question about it only.
    assert found.cached_tokens is not None
    assert found.cached_tokens >= (ITEMS - 2) * EYES["T"].tokens
    assert theirs.cached_tokens == 0


def test_a_picture_is_shared_by_its_questions_alone() -> None:
    pictures = [item["picture"] for item in CLAIM.items(Scale(ITEMS), 0)]
    assert [pictures.count(picture) for picture in pictures] == [QUESTIONS] * ITEMS
    assert not set(pictures) & {item["picture"] for item in CLAIM.items(Scale(ITEMS), 1)}


def test_a_checkpoint_is_made_once(model: Path) -> None:
    written = (model / "model.safetensors").stat().st_mtime_ns
    assert checkpoint("T", model.parent, "float32") == model
    assert (model / "model.safetensors").stat().st_mtime_ns == written
