"""Loads mutants of a model's files one after the other, and says what became of them.

Runs as a process of its own: ``python hostile_child.py DIRECTORY SEED COUNT``. The directory has
subdirectories, each a model or a tokenizer; each of its files is changed COUNT times while the
others stay as they are. Prints JSON: per outcome how many, and every mutant that ended otherwise
than in success or a ValueError which names a file; and the peak of memory above the start's.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from helpers.mutants import mutants
from sglang.srt.layers.weight import OutlinePlace
from sglang.srt.models import weights
from sglang.srt.models.checkpoint_format import open_checkpoint
from sglang.srt.models.model_spec import read_config
from sglang.srt.models.registry import lookup
from sglang.srt.models.renamed_checkpoint import named
from sglang.srt.numeric.host_arrays import FLOAT32, HOST
from sglang.srt.tokenizer import Tokenizer

ROOM = 1 << 30  # bytes of addresses that loading may take above the start's
SECONDS = 5  # of the processor, a file
TEXT = "The quick <|im_end|> brown é fox\n日本 12"
TALK = [{"role": "user", "content": TEXT}]
SMALL = 1 << 22  # parameters of a model that is really made


class LateError(BaseException):
    """A file has had its time. Not an ``Exception``, which loading might take for its own."""


def load_model(path: Path) -> None:
    fields, architecture = read_config(path)
    family = lookup(architecture)
    spec = family.read(fields, architecture)
    outline = family(spec, OutlinePlace(HOST, FLOAT32), 1)
    checkpoint = named(open_checkpoint(path, fields), family)
    weights.match(outline.slots(), checkpoint, outline.ignores)
    for name in checkpoint.order(list(outline.slots())):
        x = checkpoint.read(name)
        assert x.size < SMALL
        x.astype(np.float32).sum()
        checkpoint.quantised(name)
        checkpoint.forget(name)


def load_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(path)
    ids = tokenizer.encode(TEXT)
    tokenizer.decode(ids)
    tokenizer.decode([0, 5, 10**6, len(tokenizer.token_bytes) - 1])
    if tokenizer.chat_template is not None:
        tokenizer.encode_escaped(
            tokenizer.apply_chat_template(tokenizer.control_tokens.escape(TALK))
        )


def attempt(load: Any, path: Path) -> str:
    """ "loaded", "refused", or what went wrong."""
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        load(path)
        return "loaded"
    except ValueError as error:
        text = str(error)
        if str(path) in text or "chat template" in text or text.startswith("architecture"):
            return "refused"
        return f"names no file: {text[:200]}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__} after {time.process_time() - begin:.1f} s: {error!s:.300}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def late(number: int, frame: FrameType | None) -> None:
    raise LateError


def main() -> None:
    root, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGPROF, late)
    outcomes: Counter[str] = Counter()
    faults = {}
    models = sorted(path for path in root.iterdir() if path.is_dir())
    for directory in models:  # late loads are not counted
        for load in loads(directory):
            load(directory)
    status = Path("/proc/self/status").read_text()
    size = int(status.split("VmSize:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, -1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for directory in models:
        for path in sorted(directory.iterdir()):
            original = path.read_bytes()
            for name, data in mutants(path, count, seed):
                path.write_bytes(data)
                for load in loads(directory):
                    try:
                        found = attempt(load, directory)
                    except LateError:  # at the very end
                        found = f"took {SECONDS} s"
                    outcomes[found if found in ("loaded", "refused") else "wrong"] += 1
                    if found not in ("loaded", "refused"):
                        faults[f"{directory.name}: {name}: {load.__name__}"] = found
                        print(directory.name, name, found, file=sys.stderr)
            path.write_bytes(original)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"outcomes": outcomes, "faults": faults, "grown": grown * 1024}))


def loads(directory: Path) -> list[Any]:
    """Loads of a directory's files, by the directory's name."""
    both = {"model": load_model, "tokenizer": load_tokenizer}
    return [load for name, load in both.items() if name in directory.name]


if __name__ == "__main__":
    main()
