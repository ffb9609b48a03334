"""Parked contexts outlive the engine, behind a gate for programs: the server has their tokens."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

from helpers.http_server import Client, is_error
from helpers.launched import client_of, launched, toy_model

PARKED = 100


def sampling(tokens: int) -> dict[str, object]:
    return {"max_new_tokens": tokens, "temperature": 1.0, "seed": 5, "ignore_eos": True}


def generate(http: Client, **body: Any) -> Any:
    reply = http.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_all_parked_contexts_resume_with_another_engine(tmp_path: Path) -> None:
    texts = [f"the {i} lazy dogs" for i in range(PARKED)]
    flags = [*toy_model(tmp_path), "--max-total-tokens", "8192", "--program-gate", "0.9"]
    with launched(flags) as server, client_of(server) as http:
        whole = generate(http, text=texts, sampling_params=sampling(12))
        first = [generate(http, text=text, sampling_params=sampling(6), park={"tool": "t"})
                 for text in texts]  # fmt: skip
        assert http.stats()["contexts"] == PARKED
        server.engine().send_signal(signal.SIGKILL)
        body = {"resume": handle_of(first[0]), "idempotency_key": "a"}
        reply = http.post("/generate", json=body)
        while reply.status_code != 200:
            assert is_error(reply, 503)["code"] == "engine_lost"
            time.sleep(0.1)
            reply = http.post("/generate", json=body)
        assert generate(http, **body) == reply.json()
        assert first[0]["output_ids"] + reply.json()["output_ids"] == whole[0]["output_ids"]
        for text, before, all_of_it in zip(texts[1:], first[1:], whole[1:]):
            found = generate(http, resume=handle_of(before))
            assert before["output_ids"] + found["output_ids"] == all_of_it["output_ids"], text
        assert http.idle()["contexts"] == 0
        entered = re.search(r"sglang:programs_entered_total\{.*\} (\S+)", http.get("/metrics").text)
        assert entered is not None
        assert float(entered[1]) >= 2 * PARKED, "the texts, and all that parked"


def handle_of(found: Any) -> str:
    handle: str = found["meta_info"]["finish_reason"]["resume"]
    return handle
