"""DSPy as its users set it up. It wants older packages than ours, so it lives in an environment of
its own: ``make test-clients`` makes that and runs this file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import sglang

PYTHON = Path(__file__).resolve().parents[2] / ".venv-clients" / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="DSPy is not installed; make test-clients installs it"
)

PROGRAM = """
import json, sys
import dspy

lm = dspy.LM("openai/default", api_base=sys.argv[1], api_key="x", temperature=0.0, max_tokens=16,
             cache=False)
dspy.configure(lm=lm)
chat = lm(messages=[{"role": "user", "content": "What is 17 + 25?"}])
prompt = lm("What is 17 + 25?")
print(json.dumps([chat, prompt, dict(lm.history[-1]["usage"])], default=str))
"""


def test_dspy_lm_answers() -> None:
    with sglang.Runtime(max_total_tokens=8192) as runtime:
        done = subprocess.run(
            [PYTHON, "-c", PROGRAM, runtime.url + "/v1"],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    chat, prompt, usage = json.loads(done.stdout.splitlines()[-1])
    assert [text.strip() for text in chat] == ["42"]
    assert prompt == chat
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] > 0
