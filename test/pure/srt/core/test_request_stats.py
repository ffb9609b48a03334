"""One struct of statistics goes whole from the engine to every API."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT
from sglang.srt.core.request_stats import CacheMiss, RequestCounts, RequestStats

# The one declaration and the one line that counts: a field ``added``, 7 for each computed row.
ADDED = """
import asyncio, importlib.abc, importlib.util, json, pathlib, sys

NAME = "sglang.srt.core.request_stats"
FIELD = "    forward_passes: Count = 0\\n"

class Declare(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    def find_spec(self, name, path=None, target=None):
        if name == NAME:
            return importlib.util.spec_from_file_location(name, sys.argv[1], loader=self)
    def get_filename(self, name):
        return sys.argv[1]
    def get_data(self, path):
        source = pathlib.Path(path).read_text(encoding="utf-8")
        assert source.count(FIELD) == 1
        return source.replace(FIELD, FIELD + "    added: Count = 0\\n").encode()
    def set_data(self, path, data):
        pass  # nothing is cached under the real module's name
    def path_stats(self, path):
        raise OSError

sys.meta_path.insert(0, Declare())

import httpx
from helpers.text_worker import text_engine
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config
from sglang.srt.core.messages import Done, decode_events, encode
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.collect import Collector
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState
from sglang.srt.tokenizer import Tokenizer

collect = Collector.collect

def count(self, request, *rest):
    request.stats.added += 7
    return collect(self, request, *rest)

Collector.collect = count
assert decode_events(encode([Done(1, "stop", stats=RequestStats(added=3))]))[0].stats.added == 3

async def main(engine, tokenizer):
    completion = Completer(engine.client_on(asyncio.get_running_loop()), tokenizer)
    app = make_app(ServerState(Config.of(), completion))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for count in (1, 2):
            sampling = {"max_new_tokens": 4, "n": count, "ignore_eos": True}
            body = {"text": "once upon", "sampling_params": sampling}
            answers = (await client.post("/generate", json=body)).json()
            for answer in answers if count > 1 else [answers]:
                print(json.dumps(answer["meta_info"]))
        print(json.dumps((await client.get("/openapi.json")).json()))

tokenizer = Tokenizer(byte_level(pathlib.Path(sys.argv[2])))
engine, _ = text_engine(tokenizer)
try:
    asyncio.run(main(engine, tokenizer))
finally:
    engine.close()
"""


@pytest.mark.slow
def test_a_declared_statistic_reaches_every_answer(tmp_path: Path) -> None:
    declared = ROOT / "python" / "srt" / "core" / "request_stats.py"
    done = subprocess.run(
        [sys.executable, "-c", ADDED, str(declared), str(tmp_path)], timeout=120,
        env={"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'test'}", "HOME": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *metas, document = map(json.loads, done.stdout.splitlines())
    assert len(metas) == 3
    for meta in metas:
        assert meta["added"] == 7 * meta["forward_passes"] > 0
    shown = document["components"]["schemas"]["CompletionMeta"]
    assert shown["properties"]["added"]["minimum"] == 0
    assert "added" in shown["required"]


def test_every_count_is_shown_under_its_name() -> None:
    from sglang.srt.runtime.generated import CompletionMeta

    assert set(RequestCounts.__struct_fields__) < set(CompletionMeta.__struct_fields__)


def test_completion_of_two_requests() -> None:
    first = RequestStats(
        prompt_tokens=9, cached_tokens=4, forward_passes=2, retractions=1, queue_seconds=0.5,
        miss=CacheMiss(4, 8),
    )  # fmt: skip
    later = RequestStats(
        prompt_tokens=9, completion_tokens=3, cached_tokens=9, forward_passes=3, forced_tokens=1,
        retractions=1, queue_seconds=0.25, first_token_seconds=1.0, miss=CacheMiss(9, 9),
    )  # fmt: skip
    assert first.followed_by(later, 2.0) == RequestStats(
        prompt_tokens=9, completion_tokens=3, cached_tokens=4, forward_passes=5, forced_tokens=1,
        retractions=2, queue_seconds=0.5, first_token_seconds=3.0, miss=CacheMiss(4, 8),
    )  # fmt: skip


def test_no_first_token_has_no_moment() -> None:
    assert RequestStats().followed_by(RequestStats(), 2.0).first_token_seconds == 0
