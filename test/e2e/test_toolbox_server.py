"""A server with the operator's tools, as users start it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest
from helpers.launched import Server
from sglang.srt.tokenizer.tokenizer import EMBEDDED

MODULE = '''
import os


def calc(expression: str) -> str:
    """Compute an arithmetic expression."""
    left, right = expression.split("*")
    return str(int(left) * int(right))


TOOLS = [calc]
'''
needs_model = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)


@needs_model
def test_the_embedded_model_uses_the_servers_tools(tmp_path: Path) -> None:
    path = tmp_path / "operators_tools.py"
    path.write_text(MODULE)
    server = Server(["--toolbox", str(path), "--max-total-tokens", "8192"])
    try:
        server.wait_ready(120)
        body = {
            "messages": [{"role": "user", "content": "What is 417 * 23?"}],
            "tools": [{"type": "toolbox", "name": "calc"}],
            "temperature": 0,
            "max_tokens": 64,
        }
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
        message = reply.json()["choices"][0]["message"]
        assert message["content"] == str(417 * 23)
        assert [one["role"] for one in message["toolbox_messages"]] == ["assistant", "tool"]
        function = message["toolbox_messages"][0]["tool_calls"][0]["function"]
        assert json.loads(function["arguments"]) == {"expression": "417*23"}
        said = body["messages"]
        responses = {"input": said, "tools": body["tools"], "temperature": 0}
        reply = httpx.post(f"{server.url}/v1/responses", json=responses, timeout=120)
        call, answer = reply.json()["output"]
        assert (call["type"], call["output"]) == ("mcp_call", str(417 * 23))
        assert answer["content"][0]["text"] == str(417 * 23)
        reply = httpx.post(f"{server.url}/v1/messages", json=body, timeout=120)
        use, result, last = reply.json()["content"]
        assert use["input"] == {"expression": "417*23"}
        assert (result["type"], result["is_error"]) == ("mcp_tool_result", False)
        assert last["text"] == str(417 * 23)
        children = psutil.Process(server.process.pid).children(recursive=True)
        (tool,) = [child for child in children if "tool_child" in " ".join(child.cmdline())]
        os.kill(server.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while tool.is_running() and tool.status() != "zombie" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not tool.is_running() or tool.status() == "zombie"
    finally:
        server.process.kill()
        server.process.wait(30)
        for stream in (server.process.stdout, server.process.stderr):
            if stream is not None:
                stream.close()


def test_a_module_that_cannot_be_used_ends_the_start() -> None:
    server = Server(["--toolbox", "no_such_module", "--max-total-tokens", "4096"])
    out, error = server.process.communicate(timeout=240)
    assert server.process.returncode == 1
    assert "sglang: --toolbox no_such_module: ModuleNotFoundError: No module named" in error
    assert out == ""
