"""The pipeline by DSPy itself, over our engine in its process: a line of JSON with the replies.

It needs DSPy 3.4, which wants other releases of packages that ours has too. So it runs in a process
of its own, whose packages are those of an environment with DSPy and then ours: see ``replies``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.dspy_rag.claim import ABOUT, TASK, items, messages
from benchmark.dspy_rag.retrieve import index
from benchmark.harness.claim import Item, Scale
from benchmark.harness.command import command_parser

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".peers/dspy", ".clients/dspy")
SECONDS = 900


def packages() -> Path:
    """Folder in which DSPy is installed.

    Raises FileNotFoundError where it is not.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in FOLDERS:
        found = ROOT / folder / "lib" / version / "site-packages"
        if (found / "dspy").is_dir():
            return found
    raise FileNotFoundError("DSPy is not installed; make bench-peers installs it into .peers/dspy")


def replies(scale: Scale, seed: int, model_path: str) -> dict[str, Any]:
    """Output of ``main``, from a process that can import DSPy.

    Raises FileNotFoundError without DSPy, OSError where the process fails.
    """
    paths = os.pathsep.join(map(str, (ROOT / "python", packages(), ROOT)))
    command = [sys.executable, "-m", __name__, "--items", str(scale.items), "--seed", str(seed)]
    command += ["--model-path", model_path] + ["--long"] * scale.long
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": paths, "DSPY_CACHEDIR": folder}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=ROOT
        )
    if done.returncode:
        raise OSError(f"the pipeline by DSPy ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(found: Sequence[Item], model_path: str) -> dict[str, Any]:
    """Run all of ``found`` at once. Return seconds, replies in order, tokens as reported to DSPy.

    Raises ValueError where DSPy sends anything else than the program.
    """
    import dspy
    import sglang as sgl
    from sglang.integrations.dspy import SGLang

    class Whole(dspy.ChatAdapter):  # type: ignore[misc]
        """DSPy's own prompts. What comes is the answer as it is: a model with random weights leaves
        every form, and asking again would be other work than the program's."""

        def parse(self, signature: Any, completion: str) -> dict[str, Any]:
            return dict.fromkeys(signature.output_fields, completion)

    context = dspy.InputField(desc=ABOUT["context"])
    answer = dspy.OutputField(desc=ABOUT["answer"])
    parts = {
        "context": (list[str], context),
        "question": (str, dspy.InputField()),
        "answer": (str, answer),
    }
    rag = dspy.ChainOfThought(dspy.Signature(parts, TASK))
    rag.predict.demos = [dspy.Example(**demo) for demo in found[0]["demos"]]
    engine = sgl.Engine(model_path=model_path, log_level="warning")
    # End tokens count: the random weights of ``text_model`` sample none.
    model = SGLang(engine, max_tokens=found[0]["tokens"], temperature=0.0, cache=False)
    try:
        with dspy.context(lm=model, adapter=Whole(), disable_history=False):
            began = time.perf_counter()
            calls = [
                (rag, {"context": index(item["passages"]).search(item["question"]),
                       "question": item["question"]})
                for item in found
            ]  # fmt: skip
            parallel = dspy.Parallel(num_threads=64, disable_progress_bar=True)
            answers = [said.answer for said in parallel(calls)]
            seconds = time.perf_counter() - began
    finally:
        engine.shutdown()
    sent = sorted(json.dumps(call["messages"]) for call in model.history)
    wanted = sorted(json.dumps(messages(item)) for item in found)
    for one, other in zip(sent, wanted, strict=True):
        if one != other:
            raise ValueError(f"DSPy {dspy.__version__} sends {one}, the program {other}")
    used = [call["usage"] for call in model.history]
    cached = [use["prompt_tokens_details"]["cached_tokens"] for use in used]
    return {
        "seconds": seconds, "replies": answers, "cached_tokens": sum(cached),
        "prompt_tokens": sum(use["prompt_tokens"] for use in used), "dspy": dspy.__version__,
    }  # fmt: skip


def main() -> int:
    parser = command_parser("benchmark.dspy_rag.pipeline", __doc__)
    parser.add_argument("--items", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--model-path", default="")
    options = parser.parse_args()
    scale = Scale(options.items, options.long)
    print(json.dumps(run(items(scale, options.seed), options.model_path)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
