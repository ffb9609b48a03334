"""Checks of the model. Only headers of the weights are read; nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.semantics.tool_calls.tool_formats import format_for
from sglang.srt.commands.doctor.finding import FAIL, OK, WARN, CheckFinding
from sglang.srt.config import Config
from sglang.srt.requests.replies.reasoning_parser import marks_for
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.tokenizer.jinja_chat_template import ChatTemplateError

if TYPE_CHECKING:
    from sglang.srt.layers.weight import Slots
    from sglang.srt.models.checkpoint import Checkpoint
    from sglang.srt.models.model_spec import ModelSpec

TEXT = "Grüße, 世界 🙂"
USER = {"role": "user", "content": TEXT}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
    },
}


class ModelChecks:
    """The model that a configuration names, examined step by step."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._directory: Path | None = None
        self._spec: ModelSpec | None = None
        self._slots: Slots = {}  # tensors that the model needs
        self._checkpoint: Checkpoint | None = None

    def directory(self) -> Iterator[CheckFinding]:
        """The model's directory; all other checks need it."""
        from sglang.srt.files.location import HUB_FILE, HUB_ID, locate

        path, revision = self._config.model.model_path, self._config.model.revision
        hub = HUB_FILE.fullmatch(path) or HUB_ID.fullmatch(path)
        if path and not Path(path).expanduser().exists() and hub:
            self._directory = _fetched(path, revision)
            if self._directory is None:
                fix = "nothing; it is fetched at the first start, which needs a network"
                yield CheckFinding("model", WARN, f"{path} is not on this machine", fix)
                return
        try:
            self._directory = self._directory or locate(path, revision)
        except ValueError as error:
            yield CheckFinding("model", FAIL, str(error), "give a directory with --model-path")
            return
        files = [self._directory]
        if self._directory.is_dir():
            files = [*self._directory.glob("*.safetensors"), *self._directory.glob("*.gguf")]
        size = sum(file.stat().st_size for file in files)
        yield CheckFinding("model", OK, f"{self._directory}, {size / 1e9:.2f} GB of weights")

    def weights(self) -> Iterator[CheckFinding]:
        """The configuration and, by their headers, the weights."""
        if self._directory is None:
            return
        from sglang.srt.layers.weight import OutlinePlace
        from sglang.srt.models import weights
        from sglang.srt.models.checkpoint_format import open_checkpoint
        from sglang.srt.models.model_spec import read_config
        from sglang.srt.models.registry import lookup
        from sglang.srt.models.renamed_checkpoint import named
        from sglang.srt.numeric.host_arrays import FLOAT32, HOST

        try:
            fields, architecture = read_config(self._directory)
            family = lookup(architecture, fields.values)
            self._spec = spec = family.read(fields, architecture)
        except ValueError as error:
            yield CheckFinding(
                "config", FAIL, str(error), "serve a model of a supported architecture"
            )
            return
        outline = family(spec, OutlinePlace(HOST, FLOAT32), 1)
        self._slots = outline.slots()
        found = f"{architecture}, {spec.num_layers} layers, {spec.context_length} tokens"
        yield CheckFinding("config", OK, found)
        if self._config.model.load_format == "dummy":
            yield CheckFinding("weights", OK, "random (--load-format dummy)")
            return
        try:
            checkpoint = named(open_checkpoint(self._directory, fields), family)
            weights.match(self._slots, checkpoint, outline.ignores)
        except (ValueError, OSError) as error:
            yield CheckFinding("weights", FAIL, str(error), "fetch the checkpoint again")
            return
        self._checkpoint = checkpoint
        found = f"{len(checkpoint.shapes)} tensors, as the configuration says"
        stored = checkpoint.describe()
        yield CheckFinding("weights", OK, f"{found}; quantised: {stored}" if stored else found)

    def memory(self) -> Iterator[CheckFinding]:
        """Whether weights and KV cache fit, as far as can be estimated without allocating them."""
        if self._spec is None:
            return
        from sglang.srt.worker.kv import MemoryUse, available_memory, bytes_per_token, pool_pages
        from sglang.srt.worker.model_loading import context_length_of, device_of
        from sglang.srt.worker.scratch import scratch_bytes
        from sglang.srt.worker.storage import storage_of

        config, spec = self._config, self._spec
        try:
            length, device = context_length_of(config.model, spec), device_of(config.model.device)
            stored = storage_of(config, spec, self._slots, self._checkpoint, device)
            token, free = bytes_per_token(spec, stored.kv_dtype), available_memory(device)
            held, dtype = stored.weight_bytes, stored.dtype
            scratch = scratch_bytes(config, spec, stored.kv_dtype, dtype, device)
            use = MemoryUse(free, held, scratch=scratch)
            tokens = pool_pages(config.memory, token, use, length, device)
            tokens *= config.memory.page_size
        except (ValueError, MemoryError) as error:
            yield CheckFinding("memory", FAIL, str(error), "lower what the message names")
            return
        need, names = held + tokens * token, dtype.name
        names = f"{stored.bits} bits and {names}" if stored.bits else names
        found = (
            f"{stored.parameters / 1e6:.1f} M parameters in {names} and {tokens} KV tokens of "
            f"{token} bytes: {need / 1e9:.2f} GB of {free / 1e9:.2f} GB free on {device}"
        )
        if tokens < length:
            fix = f"raise --mem-fraction-static, or set --context-length {tokens}"
            yield CheckFinding("memory", WARN, f"{found}; less than one context of {length}", fix)
        else:
            yield CheckFinding("memory", OK, found)

    def ranks(self) -> Iterator[CheckFinding]:
        """The parts of several ranks, and whether this machine has memory for its own."""
        if self._spec is None:
            return
        from sglang.srt.ranks.layout import RankLayout
        from sglang.srt.ranks.rank import plan_rank, rank_config
        from sglang.srt.worker.kv import available_memory

        layout, sizes = RankLayout.of(self._config.parallel), list[int]()
        try:
            for rank in layout.node_ranks(self._config.parallel.node_rank):
                plan = plan_rank(rank_config(self._config, rank), rank)
                sizes.append(plan.storage.weight_bytes)
        except (ValueError, OSError) as error:
            yield CheckFinding("ranks", FAIL, str(error), "change the sizes that it names")
            return
        found = (
            f"{layout.stages} stages of {layout.tensor} ranks, {layout.local} on this machine with "
            f"{', '.join(f'{size / 1e9:.3f}' for size in sizes)} GB of weights"
        )
        need = sum(sizes) if plan.device.type == "cpu" else max(sizes)
        free = available_memory(plan.device)
        if need > free:
            fix = "use more ranks or machines, or a smaller model"
            yield CheckFinding("ranks", FAIL, f"{found}; {free / 1e9:.2f} GB are free", fix)
        else:
            yield CheckFinding("ranks", OK, f"{found}; {free / 1e9:.2f} GB are free")

    def tokenizer(self) -> Iterator[CheckFinding]:
        """Whether it reads and writes text, and what its chat template knows."""
        model = self._config.model
        if self._directory is None and not model.tokenizer_path:
            return
        path = model.tokenizer_path or str(self._directory)
        try:
            tokenizer = Tokenizer.load(path, model.revision, self._config.server.chat_template)
        except ValueError as error:
            yield CheckFinding("tokenizer", FAIL, str(error), "give another with --tokenizer-path")
            return
        found = f"{tokenizer.vocab_size} tokens, ends {list(tokenizer.eos_ids)}"
        vocab = self._spec.vocab_size if self._spec is not None else None
        if tokenizer.decode(tokenizer.encode(TEXT, False)) != TEXT:
            fix = "its files do not belong together; fetch them again"
            yield CheckFinding("tokenizer", WARN, f"{found}; {TEXT!r} does not come back", fix)
        elif vocab is not None and tokenizer.vocab_size > vocab:
            fix = "serve the model with its own tokenizer"
            yield CheckFinding("tokenizer", FAIL, f"{found}; the model has {vocab}", fix)
        elif not tokenizer.eos_ids:
            fix = "requests end by max_tokens and stops only"
            yield CheckFinding("tokenizer", WARN, f"{found}: no token ends a text", fix)
        else:
            yield CheckFinding("tokenizer", OK, found)
        yield from self._template(tokenizer)

    def _template(self, tokenizer: Tokenizer) -> Iterator[CheckFinding]:
        if tokenizer.chat_template is None:
            fix = "give one with --chat-template; /v1/completions and /generate need none"
            yield CheckFinding("chat template", WARN, "the model has none", fix)
            return
        try:
            plain = _rendered(tokenizer)
        except ChatTemplateError as error:
            fix = "give another with --chat-template"
            yield CheckFinding("chat template", FAIL, str(error), fix)
            return
        known_tools = (
            "knows tools" if _knows_tools(tokenizer, plain) else "knows no tools: gets them as text"
        )
        model = str(self._directory or self._config.model.model_path)
        names = () if self._spec is None else (self._spec.architecture,)
        calls = type(format_for("auto", tokenizer.chat_template, model, *names)).__name__
        marks = marks_for("auto", tokenizer.chat_template)
        thinks = "no reasoning" if marks is None else f"reasoning between {marks.begin} and "
        thinks += "" if marks is None else marks.end
        known = f"{known_tools}, calls in the format {calls}, {thinks}"
        if TEXT not in plain:
            fix = "give another with --chat-template"
            yield CheckFinding("chat template", FAIL, "it drops what the user says", fix)
        else:
            yield CheckFinding("chat template", OK, f"renders; {known}")


def _rendered(tokenizer: Tokenizer, **variables: Any) -> str:
    messages: list[Mapping[str, Any]] = [USER]
    return tokenizer.apply_chat_template(messages, **variables)


def _knows_tools(tokenizer: Tokenizer, plain: str) -> bool:
    try:
        return _rendered(tokenizer, tools=[TOOL]) != plain
    except ChatTemplateError:
        return False


def _fetched(name: str, revision: str) -> Path | None:
    """The hub model's directory, or GGUF file, in the cache of this machine."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    from sglang.srt.files.location import HUB_FILE

    named = HUB_FILE.fullmatch(name)
    repository, file = (named[1], named[2]) if named else (name, "")
    try:
        found = snapshot_download(repository, revision=revision or None, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        return None
    path = Path(found) / file
    return path if path.exists() else None
