"""``python examples/essay_judge MODEL PHOTO ESSAY``: a model of OpenAI, or of OPENAI_BASE_URL."""

from __future__ import annotations

import sys
from pathlib import Path

import sglang as sgl
from sglang_judge import judge

model, photo, essay = sys.argv[1:]
state = judge.run(photo, Path(essay).read_text(), backend=sgl.OpenAI(model))
print(state.ret_value or "The essay is not about the image.")
