"""An engine process without a model: the real engine, wire and loop over ``TextWorker``.

    python engine_child.py DIRECTORY PARENT

It starts in a fraction of the time. SIGUSR1 makes it hang: it lives and answers nothing. The
variables ENGINE_CHILD_FAULT, _DEVICE, _CAPACITY and _SECONDS make it another one. While the file
ENGINE_CHILD_STALL is there, its loop comes to no end at a request with stop patterns. A pass that
finds the file ENGINE_CHILD_LOST removes it and raises what it contains, as every later pass does.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers.text_worker import TextWorker
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch
from sglang.srt.core.messages import Reply
from sglang.srt.core.progress import Progress
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Threaded
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.process import leave, map_progress, read_vocab, run_to_end
from sglang.srt.engine.socket import SocketChannel
from sglang.srt.grammar.stop_watch import Patterns
from sglang.srt.system.processes import when_orphaned

PASS_SECONDS = 0.002


def setting(name: str, default: str = "") -> str:
    return os.environ.get(f"ENGINE_CHILD_{name}", default)


def hang(*_: object) -> None:
    while True:
        time.sleep(60)


def stall(file: Path) -> None:
    feed = Patterns.feed

    def stalled(self: Patterns, data: bytes) -> object:
        while file.exists():
            time.sleep(0.01)
        return feed(self, data)

    Patterns.feed = stalled  # type: ignore[method-assign, assignment]


class Fragile(TextWorker):
    """A worker whose device may be lost."""

    error = ""

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        file = Path(setting("LOST", "/nowhere"))
        if file.exists():
            self.error = file.read_text()
            file.unlink()
        if self.error:
            raise RuntimeError(self.error)
        return super().launch(batch, masks)


def main(directory: str, parent: int) -> None:
    signal.signal(signal.SIGUSR1, hang)
    root = Path(directory)
    if file := setting("STALL"):
        stall(Path(file))
    config = msgspec.msgpack.decode((root / "config").read_bytes(), type=Config)
    when_orphaned(parent, partial(leave, root))
    channel = SocketChannel(f"ipc://{root}/wire")
    vocab = read_vocab(root)
    channel.connected()
    time.sleep(float(setting("SECONDS", "0")))  # the model "loads"
    if fault := setting("FAULT"):
        channel.emit([Reply(0, False, fault)])
        channel.close()
        return
    info = EngineInfo(
        model_path="toy", architecture="Toy", dtype="none",
        device=setting("DEVICE", "none"),
        vocab_size=len(vocab), context_length=1024,
        capacity=config.memory.max_total_tokens or int(setting("CAPACITY", "4096")), page_size=1,
        max_running_requests=16, max_queued_requests=64, eos=(),
    )  # fmt: skip
    worker = Threaded(Fragile(len(vocab), seconds=PASS_SECONDS))
    progress = Progress(map_progress(root))
    engine = EngineCore(worker, info, config.schedule, vocab, progress=progress)
    channel.emit([Reply(0, data=msgspec.to_builtins(info))])
    code = run_to_end(engine, channel)
    channel.close()
    shutil.rmtree(root, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
