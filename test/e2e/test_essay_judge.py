"""The essay judge in our language and in plain calls: same requests, same result, counted lines."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
import sglang as sgl
from helpers.fake_openai import Body, FakeOpenAI, by_prompt
from helpers.paths import ROOT

HERE = ROOT / "examples" / "essay_judge"
sys.path.insert(0, str(HERE))

import openai_judge  # noqa: E402
import sglang_judge  # noqa: E402

REPLIES = {
    "related to the image?": "yes",
    "Judge the Clarity": "Judgment: It is clear. END",
    "Judge the Originality": " It is new.END And more.",
    "Judge the Evidence": "Judgment: It has none.",
    "In summary,": " a clear essay without evidence. As I said.",
    "The grade is": " B+",
    "as JSON.": '{"summary": "Clear, without evidence.", "grade": "B+"}',
}
ESSAY = "A red square stands for courage."


def service(**replies: Any) -> FakeOpenAI:
    """A service that answers as ``REPLIES`` say. A request for one of several texts by a schema
    gets JSON."""
    answer = by_prompt({**REPLIES, **replies})

    def script(body: Body) -> Any:
        reply = answer(body)
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        return json.dumps(dict.fromkeys(schema["properties"], reply)) if schema else reply

    return FakeOpenAI(script)


@pytest.fixture
def photo(tmp_path: Path) -> str:
    path = tmp_path / "red.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n red")
    return str(path)


def ours(fake: FakeOpenAI, photo: str) -> Any:
    backend = sgl.OpenAI("gpt-4o", base_url=fake.url)
    return sglang_judge.judge.run(photo, ESSAY, backend=backend).ret_value


def plain(fake: FakeOpenAI, photo: str) -> Any:
    client = openai.OpenAI(base_url=fake.url, api_key="none")
    return openai_judge.judge(client, "gpt-4o", photo, ESSAY)


def test_both_send_the_same_and_find_the_same(photo: str) -> None:
    asked = []
    for judge in (ours, plain):
        with service() as fake:
            report = judge(fake, photo)
        assert report == {"summary": "Clear, without evidence.", "grade": "B+"}
        sent = [(b["messages"], b.get("stop"), b.get("max_tokens")) for b in fake.bodies]
        asked.append(sorted(json.dumps(one) for one in sent if len(one[0]) > 4))
        assert len(fake.bodies) == 7
    assert asked[0] == asked[1]


@pytest.mark.parametrize("judge", [ours, plain])
def test_both_stop_early_and_ask_again(judge: Any, photo: str) -> None:
    with service(**{"related to the image?": "no"}) as fake:
        assert judge(fake, photo) is None
    assert len(fake.bodies) == 1
    right = REPLIES["as JSON."]
    with service(**{"as JSON.": "B+, I think", "does not match": right}) as fake:
        assert judge(fake, photo)["grade"] == "B+"
    assert len(fake.bodies) == 8


def test_as_a_user_starts_it(photo: str, tmp_path: Path) -> None:
    essay = tmp_path / "essay.txt"
    essay.write_text(ESSAY)
    with service() as fake:
        environment = {
            **os.environ, "OPENAI_BASE_URL": fake.url, "PYTHONPATH": str(ROOT / "python"),
        }  # fmt: skip
        command = [sys.executable, str(HERE), "m", str(photo), str(essay)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert "'grade': 'B+'" in done.stdout, done.stderr


def lines_of_code(source: str) -> int:
    """Lines that are neither empty nor a comment nor part of a docstring."""
    tree = ast.parse(source)
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    documented = {n for s in strings for n in range(s.lineno, (s.end_lineno or 0) + 1)}
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in documented
        for number, line in enumerate(source.splitlines(), 1)
    )


def test_the_page_shows_both_and_counts_their_lines() -> None:
    page = (ROOT / "docs" / "essay-judge.md").read_text()
    sources = [(HERE / f"{name}_judge.py").read_text() for name in ("sglang", "openai")]
    assert re.findall(r"```python\n(.*?)```", page, re.DOTALL) == sources
    own, plain = map(lines_of_code, sources)
    assert f"**{own}** | **{plain}** | {plain / own:.1f}x |" in page
