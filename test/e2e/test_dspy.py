"""DSPy as its users set it up. It wants older packages than ours, so it lives in an environment of
its own: ``make test-clients`` makes that and runs this file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx
import pytest
import sglang

PYTHON = Path(__file__).resolve().parents[2] / ".venv-clients" / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="DSPy is not installed; make test-clients installs it"
)

MESSAGES = [{"role": "user", "content": "What is 17 + 25?"}]
PROGRAM = """
import json, sys
import dspy

messages = json.loads(sys.argv[2])
lm = dspy.LM("openai/default", api_base=sys.argv[1], api_key="x", temperature=0.0, max_tokens=16,
             cache=False)
dspy.configure(lm=lm)
answers = [lm(messages=messages), lm(messages[0]["content"])]
print(json.dumps([*answers, dict(lm.history[-1]["usage"])], default=str))
"""


def test_dspy_lm_answers() -> None:
    with sglang.Runtime(max_total_tokens=8192) as runtime:
        done = subprocess.run(
            [PYTHON, "-c", PROGRAM, runtime.url + "/v1", json.dumps(MESSAGES)],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        body = {"messages": MESSAGES, "temperature": 0.0, "max_tokens": 16}
        direct = httpx.post(runtime.url + "/v1/chat/completions", json=body, timeout=60).json()
    assert done.returncode == 0, done.stderr[-4000:]
    chat, prompt, usage = json.loads(done.stdout.splitlines()[-1])
    assert chat == prompt == [direct["choices"][0]["message"]["content"]]
    assert chat[0].strip()
    assert usage["prompt_tokens"] == direct["usage"]["prompt_tokens"] > 0
    assert usage["completion_tokens"] == direct["usage"]["completion_tokens"] > 0
