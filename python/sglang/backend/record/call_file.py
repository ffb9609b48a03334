"""Recording: a file of calls and their answers.

JSON lines: first the traits of the backend, then a line for each call. A call is found by its key,
a digest of the request, so that neither order nor parallelism matters.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from heapq import nlargest
from typing import Any

from sglang import errors
from sglang.backend.base import Backend, Call, Choose, Commit
from sglang.backend.mock import common
from sglang.errors import BackendError, SglangError
from sglang.ir.chat_template import ChatTemplate
from sglang.ir.params import chosen
from sglang.ir.prompt_media import Media

FORMAT = 1
SHOWN_CHARS = 30  # characters shown before and after the first difference of two prompts
COMPARED = 50  # limit of the prompts that are compared with an unknown one by their words


def asked(call: Call) -> dict[str, Any]:
    """Return the request of a call as JSON data, the same with and without streaming."""
    prompt = call.prompt
    what: dict[str, Any] = {
        "kind": "gen",
        "prompt": prompt.text,
        "messages": [{**m, "content": _content(m["content"])} for m in prompt.messages],
        "media": [_digest(medium) for medium in prompt.media],
        "parallel": prompt.parallel,
    }
    if prompt.tools is not None:
        what["tools"] = [prompt.tools.choice, *prompt.tools.definitions]
    if isinstance(call, Commit):
        what["kind"] = "commit"
    elif isinstance(call, Choose):
        what.update(kind="select", options=call.options, method=call.method.name)
    else:
        what["params"] = chosen(call.params)
    if prompt.lora_path and "params" not in what:  # parameters name the adapter
        what["lora_path"] = prompt.lora_path
    plain: dict[str, Any] = json.loads(json.dumps(what, default=repr))
    return plain


def key_of(what: dict[str, Any]) -> str:
    """Return the key of a call: a digest of the result of ``asked``."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_digest(part) if isinstance(part, Media) else part for part in content]


def _digest(medium: Media) -> str:
    source = medium.url or hashlib.sha256(medium.data).hexdigest()[:32]
    return f"{medium.kind} {medium.mime} {source} {medium.num_frames}"


def traits_of(backend: Backend) -> dict[str, Any]:
    """Return the file's first line: the backend's traits on which a program's flow depends."""
    return {
        "sglang_recording": FORMAT,
        "backend": backend.name,
        "chat_template": dataclasses.asdict(backend.chat_template),
        "constraints": sorted(backend.constraints),
        "speculates": backend.speculates,
        "messages_only": backend.messages_only,
        "continues": backend.continues,
        "calls_tools": backend.calls_tools,
        "tool_format": backend.tool_format,
    }


def template_of(traits: dict[str, Any]) -> ChatTemplate:
    """Return the chat template of a file's first line."""
    data = dict(traits["chat_template"])
    data["roles"] = {role: tuple(words) for role, words in data["roles"].items()}
    return ChatTemplate(**{**data, "stop": tuple(data["stop"])})


def error_data(error: Exception) -> dict[str, Any]:
    """Return an error as JSON data."""
    known = {name: getattr(error, name, None) for name in ("status", "request_id")}
    return {"type": type(error).__name__, "message": str(error), **known}


def error_of(data: dict[str, Any]) -> SglangError:
    """Return the recorded error; for other packages' errors, a BackendError with their type."""
    kind = getattr(errors, data["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, SglangError)):
        return BackendError(f"{data['type']}: {data['message']}")
    error = kind(data["message"])
    if isinstance(error, BackendError):
        error.status, error.request_id = data["status"], data["request_id"]
    return error


class CallFile:
    """A recording that has been read. Thread-safe.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a recording, or damaged. An incomplete last line is ignored.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        lines = self._read()
        self.traits = next(lines, {})
        version = self.traits.get("sglang_recording")
        if version != FORMAT:
            raise ValueError(
                f"{self.path} is no recording of format {FORMAT}: its first line says {version!r}; "
                "give a file that a Recorder has written"
            )
        self._lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in lines:
            self._lines[line["key"]].append(line)
        self._given: Counter[str] = Counter()
        self._lock = threading.Lock()

    def _read(self) -> Iterator[dict[str, Any]]:
        with open(self.path, encoding="utf-8", errors="surrogatepass") as file:
            for number, line in enumerate(file, 1):
                try:
                    data = json.loads(line)
                except ValueError as error:
                    if not line.endswith("\n"):
                        return
                    raise ValueError(f"{self.path}:{number} is not JSON: {error}") from error
                if not isinstance(data, dict):
                    raise ValueError(f"{self.path}:{number} is {line[:40]!r}, not a JSON object")
                if number > 1 and not {"key", "kind", "prompt"} <= data.keys():
                    raise ValueError(
                        f"{self.path}:{number} is {line[:40]!r}, no call of a recording"
                    )
                yield data

    def line(self, call: Call) -> dict[str, Any] | None:
        """Return the line of ``call``, None for an unknown hint. Several lines of a call are used
        in turn, again and again, so that a program can be replayed any number of times.

        Raises BackendError for an unknown call, with the nearest recorded call.
        """
        what = asked(call)
        key = key_of(what)
        found = self._lines.get(key)
        if found is None:
            if what["kind"] == "commit":
                return None
            raise BackendError(f"{self.path} has no such call: {self._nearest(what)}")
        with self._lock:
            self._given[key] += 1
            return found[(self._given[key] - 1) % len(found)]

    def _nearest(self, what: dict[str, Any]) -> str:
        kind, prompt = what["kind"], what["prompt"]
        known = {
            line["prompt"]: line
            for lines in self._lines.values()
            for line in lines
            if line["kind"] == kind
        }
        if not known:
            return f"it has no {kind}"
        if prompt in known:
            return _differences(known[prompt], what)
        begin_alike = nlargest(COMPARED, known, key=lambda text: common(text, prompt))
        nearest = max(begin_alike, key=lambda text: _likeness(text, prompt))
        at = common(nearest, prompt)
        return (
            f"the nearest prompt of a {kind} differs from character {at} on: "
            f"recorded {_around(nearest, at)}, asked {_around(prompt, at)}; record the run again"
        )


def _differences(line: dict[str, Any], what: dict[str, Any]) -> str:
    recorded = {**line, **line.get("params", {})}
    wanted = {**what, **what.get("params", {})}
    names = [n for n in (*line.get("params", {}), *what.get("params", {})) if n != "params"]
    names += ["options", "method", "media", "parallel", "lora_path"]
    found = [
        f"{name} recorded {recorded.get(name)!r}, asked {wanted.get(name)!r}"
        for name in dict.fromkeys(names)
        if recorded.get(name) != wanted.get(name)
    ]
    return "the same prompt, but " + ("; ".join(found) or "other messages") + "; record it again"


def _likeness(a: str, b: str) -> float:
    """Return the fraction of words that two prompts share, in any order: an alignment would take
    minutes for long prompts."""
    return difflib.SequenceMatcher(None, a.split(), b.split(), autojunk=False).quick_ratio()


def _around(text: str, at: int) -> str:
    return repr(text[max(at - SHOWN_CHARS, 0) : at + SHOWN_CHARS])
