"""Multimodal models: our pixels and our logits equal those of transformers, for pictures of odd
sizes and for frames of videos, however the paged cache is used."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import parity, vision
from helpers.paged import Paged, Sequence
from helpers.vision import IMAGE, VIDEO
from PIL import Image
from sglang.srt.config import Config
from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.core.places import places
from sglang.srt.media.processor import Prepared
from sglang.srt.media.processor_settings import CLIP_MEAN, CLIP_STD
from sglang.srt.worker.model_worker import ModelWorker
from torch import Tensor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

HALF = (0.5, 0.5, 0.5)
THEIRS = {
    "LlavaForConditionalGeneration": CLIPImageProcessorPil,
    "LlavaNextForConditionalGeneration": LlavaNextImageProcessorPil,
    "LlavaNextVideoForConditionalGeneration": LlavaNextImageProcessorPil,
    "LlavaOnevisionForConditionalGeneration": LlavaOnevisionImageProcessorPil,
    "Qwen2_5_VLForConditionalGeneration": Qwen2VLImageProcessorPil,
}


@dataclass(frozen=True)
class Case:
    """``sizes``: of the pictures in a prompt; ``frames``: how many its video has, at ``fps``."""

    architecture: str
    sizes: tuple[tuple[int, int], ...] = ()
    frames: int = 0
    fps: float = 2.0
    seed: int = 0


LLAVA, NEXT = "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration"
NEXT_VIDEO = "LlavaNextVideoForConditionalGeneration"
ONEVISION = "LlavaOnevisionForConditionalGeneration"
QWEN = "Qwen2_5_VLForConditionalGeneration"
CASES = [
    Case(LLAVA, ((41, 97),)),
    Case(LLAVA, ((30, 20), (7, 55))),
    Case(NEXT, ((41, 97),)),
    Case(NEXT, ((97, 40), (28, 28), (9, 70))),
    Case(NEXT_VIDEO, ((33, 20),), frames=3),
    Case(ONEVISION, ((41, 97),)),
    Case(ONEVISION, ((130, 77), (20, 31))),
    Case(ONEVISION, frames=2),
    Case(QWEN, ((41, 97),)),
    Case(QWEN, ((30, 50), (64, 24))),
    Case(QWEN, frames=6, fps=0.5),
    Case(QWEN, ((33, 20),), frames=5, fps=4.0),
]
CONTINUED = {case.architecture: case for case in CASES}.values()  # the last of each


@dataclass(frozen=True)
class Asked:
    """A prompt, what is in it, and the keyword arguments of the transformers model."""

    tokens: list[int]
    media: tuple[MediaSpan, ...]
    inputs: dict[str, Any]


def settings(architecture: str) -> tuple[Any, Any]:
    values = vision.KINDS[architecture].files["preprocessor_config.json"]
    return values.get("image_mean", CLIP_MEAN), values.get("image_std", CLIP_STD)


def patches(x: Tensor, size: int) -> Tensor:
    """Frames [N, 3, height, width] as Qwen's reference has them, [patches, numbers]."""
    steps, rows, columns = x.shape[0] // 2, x.shape[2] // size, x.shape[3] // size
    x = x.view(steps, 2, 3, rows // 2, 2, size, columns // 2, 2, size)
    return x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(steps * rows * columns, -1)


def pictures_of(
    case: Case, pictures: list[Image.Image], prepared: list[Prepared]
) -> dict[str, Any]:
    """Inputs that transformers' own processor makes of the pictures. Asserts that ours are the
    same."""
    values = dict(vision.KINDS[case.architecture].files["preprocessor_config.json"])
    theirs = THEIRS[case.architecture](**{k: v for k, v in values.items() if "type" not in k})
    asked: Any = [pictures] if case.architecture == ONEVISION else pictures
    found = dict(theirs(asked, return_tensors="pt"))
    mean, std = settings(case.architecture)
    ours = [vision.normalised(p, mean, std) for p in prepared]
    if case.architecture == QWEN:
        size = values["patch_size"]
        flat = torch.cat([patches(x.repeat(2, 1, 1, 1), size) for x in ours])
        assert (flat - found["pixel_values"]).abs().max() < 1e-6
        for p, grid in zip(prepared, found["image_grid_thw"].tolist()):
            assert (p.grid[0], 2 * p.grid[1], 2 * p.grid[2]) == tuple(grid)
        return found
    for x, want in zip(ours, found["pixel_values"]):
        assert (x - want.view(-1, *x.shape[1:])[: len(x)]).abs().max() < 1e-6
    if case.architecture == ONEVISION:
        found["batch_num_images"] = torch.tensor([len(pictures)])
    return found


def video_of(case: Case, prepared: Prepared) -> dict[str, Any]:
    x = vision.normalised(prepared, *settings(case.architecture))
    if case.architecture != QWEN:
        return {"pixel_values_videos": x[None]}
    steps, rows, columns = prepared.grid
    return {
        "pixel_values_videos": patches(x, vision.QWEN_PIXELS["patch_size"]),
        "video_grid_thw": torch.tensor([[steps, 2 * rows, 2 * columns]]),
        "second_per_grid_ts": torch.tensor([2 / case.fps]),
    }


def asked(case: Case, directory: Path) -> Asked:
    processor, r = vision.processor(directory), random.Random(case.seed)
    pictures = [vision.picture(w, h, i) for i, (w, h) in enumerate(case.sizes)]
    prepared = [processor.image(p, alone=len(pictures) == 1) for p in pictures]
    inputs = pictures_of(case, pictures, prepared) if pictures else {}
    if case.frames:
        frames = [vision.picture(45, 26, i) for i in range(case.frames)]
        prepared.append(processor.video(iter(frames), case.fps))
        inputs |= video_of(case, prepared[-1])
    texts = [[r.randrange(IMAGE) for _ in range(r.randint(1, 6))] for _ in range(len(prepared) + 1)]
    tokens, media = vision.prompt(texts, prepared)
    if case.architecture == QWEN:
        kinds = [1 if t == IMAGE else 2 if t == VIDEO else 0 for t in tokens]
        inputs["mm_token_type_ids"] = torch.tensor([kinds])
    if case.fps < 1:
        # After videos that reach further in time than in space transformers 5.23 departs from the
        # paper (docs/vision.md); test/pure/srt/core/test_places.py holds these to the paper.
        three = torch.tensor(places(media, 0, len(tokens))).view(3, 1, -1)
        assert three[0].max() > three[1:, :, : media[-1].end].max()
        inputs["position_ids"] = three
    return Asked(tokens, media, inputs)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.architecture}-{len(c.sizes)}-{c.frames}")
def test_logits_and_text(case: Case, tmp_path: Path) -> None:
    model = vision.make(case.architecture, case.seed)
    directory = vision.save(model, tmp_path)
    prompt = asked(case, directory)
    ids, length = torch.tensor([prompt.tokens]), len(prompt.tokens)
    with torch.no_grad():
        want = model(ids, **prompt.inputs).logits[0]
        blind = model(ids).logits[0]
    assert want.std() > 0.5
    assert (want - blind)[-1].abs().max() > 0.1, "nothing depends on what is seen"
    for kernels, page_size in (("torch", 1), ("native", 4)):
        paged = Paged(str(directory), page_size, case.seed, cpu_kernels=kernels)
        for step in (length, 7):
            sequence = Sequence(prompt.tokens)
            while sequence.done < length:
                count = min(step, length - sequence.done)
                row = vision.row(paged, sequence, prompt.media, count)
                sequence.logits += vision.logits(paged, [row])
            parity.compare([sequence.result], [want], f"{kernels} kernels, {step} at a time")
    if case not in CONTINUED:
        return
    text = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=parity.NEW_TOKENS,
        do_sample=False, **prompt.inputs,
    )[0, length:].tolist()  # fmt: skip
    assert len(set(text)) > 3
    assert vision.greedy(paged, prompt.tokens, prompt.media, parity.NEW_TOKENS) == text


# Tensor names in checkpoints: as transformers saves them now, and as renamed by these rules.
LLAVA_NEW = (
    (r"^language_model\.lm_head", "lm_head"), (r"^language_model\.model", "model.language_model"),
    (r"^(vision_tower|multi_modal_projector|image_newline)", r"model.\1"),
)  # fmt: skip
LAYOUTS = [
    (LLAVA, LLAVA_NEW),
    (LLAVA, ((r"^vision_tower\.", "vision_tower.vision_model."),)),
    (ONEVISION, LLAVA_NEW),
    (NEXT_VIDEO, (*LLAVA_NEW, (r"^model\.vision_tower\.", "model.vision_tower.vision_model."))),
    (QWEN, ((r"^visual", "model.visual"), (r"^model\.(?!visual)", "model.language_model."))),
]


@pytest.mark.parametrize(("architecture", "rules"), LAYOUTS)
def test_names_of_other_releases(architecture: str, rules: Any, tmp_path: Path) -> None:
    """A checkpoint is the same model under any of its names."""

    def other(name: str) -> str:
        for pattern, new in rules:
            name = re.sub(pattern, new, name)
        return name

    model = vision.make(architecture)
    first = vision.save(model, tmp_path / "first")
    second = vision.save(model, tmp_path / "second", other)
    weights = []
    for directory in (first, second):
        worker = ModelWorker(
            Config.of(model_path=str(directory), dtype="float32", cpu_kernels="torch")
        )
        weights.append(worker.model.slots())
    assert weights[0].keys() == weights[1].keys()
    for name, slot in weights[0].items():
        assert torch.equal(slot.target, weights[1][name].target), name


@pytest.mark.parametrize("architecture", [LLAVA, QWEN])
def test_quantisation_leaves_towers_plain(architecture: str, tmp_path: Path) -> None:
    directory = vision.save(vision.make(architecture), tmp_path)
    prompt = asked(Case(architecture, ((41, 97),)), directory)
    seen = []
    for quantization in ("none", "int8"):
        paged = Paged(str(directory), 1, 0, quantization=quantization, cpu_kernels="native")
        model: Any = paged.worker.model
        with torch.inference_mode():
            seen.append(model.encode(prompt.media[0]))
        assert vision.greedy(paged, prompt.tokens, prompt.media, 3)
    assert torch.equal(*seen)
    assert {layer.packed.format for layer in model.text.stored()[2:]} == {"w8a8"}
