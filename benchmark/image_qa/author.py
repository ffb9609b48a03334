"""Author: one question after the other by ``generate`` of transformers, as the paper's baseline
(the code of LLaVA's authors) answers them: no batch, and nothing kept from one question for the
next."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmark.harness.claim import Claim, Item
from benchmark.harness.measure import Outcome
from benchmark.image_qa.model import MARK


class Author:
    """A side for the claim ``image_qa`` alone. ``path``: a checkpoint of ``model``."""

    name = backend = "transformers"

    def __init__(self, path: Path) -> None:
        import torch
        import transformers
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        self.versions: Mapping[str, str] = {"transformers": transformers.__version__}
        llava: Any = transformers.LlavaForConditionalGeneration
        self._model = llava.from_pretrained(path, dtype="auto")
        self._model.eval()
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
        # A turn's end, which ends our side's texts too; random weights sample none.
        self._model.generation_config.eos_token_id = self._tokenizer.eos_token_id
        self._pictures = CLIPImageProcessorPil.from_pretrained(path)
        eyes = self._model.config.vision_config
        self._tokens = (eyes.image_size // eyes.patch_size) ** 2
        # Lazy imports are no part of a measurement.
        self._model.generate(torch.tensor([[1]]), attention_mask=torch.ones(1, 1), max_new_tokens=1)

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        """Both modes are the same: it does one after the other."""
        answers, latencies, prompts, drawn = [], [], 0, 0
        for item in items:
            began = time.perf_counter()
            text, read, written = self._answer(item)
            latencies.append(time.perf_counter() - began)
            answers.append(text)
            prompts, drawn = prompts + read, drawn + written
        times = latencies if mode == "latency" else []
        return Outcome(sum(latencies), answers, times, prompts, 0, drawn)

    def _answer(self, item: Item) -> tuple[str, int, int]:
        """The text, and how many tokens were read and written."""
        import torch
        from PIL import Image

        turn: Any = {"role": "user", "content": f"{MARK}\n{item['question']}"}
        prompt = self._tokenizer.apply_chat_template(
            [turn], tokenize=False, add_generation_prompt=True
        )
        prompt = prompt.replace(MARK, MARK * self._tokens)
        inputs = self._tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        data = base64.b64decode(item["picture"].partition(",")[2])
        pixels = self._pictures(Image.open(BytesIO(data)), return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            found = self._model.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
                pixel_values=pixels.to(self._model.dtype), do_sample=False,
                max_new_tokens=item["tokens"],
            )  # fmt: skip
        read = inputs["input_ids"].shape[1]
        text = self._tokenizer.decode(found[0, read:], skip_special_tokens=True)
        return text, read, found.shape[1] - read

    def flush(self) -> None:
        """Nothing is kept."""

    def pause(self) -> None:
        """The model computes only when it is called, in this process."""

    def resume(self) -> None:
        """See ``pause``."""

    def close(self) -> None:
        del self._model
