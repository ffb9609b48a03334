"""A GGUF file alone is a model that can be served: weights, tokenizer and template are in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
import transformers
from helpers.gguf_files import Q, write_model
from helpers.tokenizer_files import gguf_of_json
from sglang.srt import cli
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.tokenizer.tokenizer import EMBEDDED

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)
SETTINGS: dict[str, Any] = {"max_total_tokens": 4096, "log_level": "warning", "device": "cpu",
                            "threads": 1, "dtype": "float32"}  # fmt: skip
TALK = [{"role": "user", "content": "The sky is blue. What is blue?"}]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = transformers.LlamaForCausalLM.from_pretrained(EMBEDDED).float().eval()
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write_model(path, model, "llama", Q.F32, tokenizer=gguf_of_json(EMBEDDED, "smollm"))


def test_it_writes_what_the_same_weights_write(file: Path) -> None:
    tokenizer = Tokenizer(file)
    prompt = tokenizer.apply_chat_template(TALK)
    assert prompt == Tokenizer.load().apply_chat_template(TALK)
    sampling = {"max_new_tokens": 16, "temperature": 0.0, "ignore_eos": True}
    with sgl.Engine(model_path=str(file), **SETTINGS) as engine:
        found = engine.generate(prompt, sampling)
    with sgl.Engine(**SETTINGS) as engine:
        want = engine.generate(input_ids=list(tokenizer.encode(prompt)), sampling_params=sampling)
    assert found["text"] == want["text"]
    assert len(found["text"]) > 8


def test_the_doctor_examines_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--json", "--port", "0", "--model-path", str(file)])
    report = json.loads(capsys.readouterr().out)
    found = {each["check"]: each for each in report["findings"]}
    assert code == 0, report
    assert {found[check]["state"] for check in ("model", "config", "weights", "tokenizer",
                                                "chat template", "memory")} == {"ok"}  # fmt: skip
    assert "tiny.gguf, 0.01 GB" in found["model"]["found"]
    assert "3.1 M parameters" in found["memory"]["found"]
    file.with_name("broken.gguf").write_bytes(file.read_bytes()[:5000])
    code = cli.main(["doctor", "--json", "--port", "0", "--model-path",
                     str(file.with_name("broken.gguf"))])  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    told = [each["found"] for each in report["findings"] if each["state"] == "fail"]
    assert any("broken.gguf" in each for each in told)
