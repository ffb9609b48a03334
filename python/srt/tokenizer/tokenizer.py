"""Tokenizer: a model directory's ``tokenizer.json`` and what stands beside it."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from srt.core.vocabulary import Vocabulary
from srt.tokenizer.chat import ChatTemplate, ChatTemplateError
from srt.tokenizer.detokenizer import Detokenizer
from srt.tokenizer.inside import Inside
from srt.tokenizer.pieces import piece_bytes
from srt.tokenizer.shield import Shield
from srt.tokenizer.templates import NAMES, built_in, family_of

log = logging.getLogger("sglang.tokenizer")

EMBEDDED = Path(__file__).resolve().parent.parent / "assets" / "sglang-tiny"
LONG = 1 << 12  # characters from which on ``encode`` lets other threads run meanwhile
_FILES = ("tokenizer*", "*.jinja", "generation_config.json", "config.json", "special_tokens_map*")
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class TokenizerError(ValueError):
    """The tokenizer's files are missing or cannot be read."""


class Tokenizer:
    """Text to ids and back.

    Attributes:
        path: the directory it was read from.
        token_bytes: bytes of every id; control tokens are their literal text. The text of ids is
            the concatenation, read as UTF-8 with errors replaced.
        special_ids: control tokens, hidden by ``skip_special``.
        eos_ids: ids that end a generation.
        bos_id: the id that begins every sequence, None where the model has none.
        before: ids that ``encode`` puts before a text.
        vocab_size: one more than the largest id.
        longest: bytes of the longest token.
        shield: keeps control tokens in the texts of users plain text.
    """

    def __init__(self, path: Path, chat_template: str = "") -> None:
        """Read directory ``path``; ``chat_template`` is the template to prefer, its path or the
        name of a built-in one.

        Raises TokenizerError.
        """
        self.path = path
        source = _read(path / "tokenizer.json")
        if source is None:
            raise TokenizerError(
                f"no tokenizer.json in {path}; convert the model's tokenizer to that format"
            )
        try:
            layout = json.loads(source)
            self._model = tokenizers.Tokenizer.from_str(source)
            self._source = source
            self.token_bytes = piece_bytes(self._model.get_vocab(with_added_tokens=True), layout)
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"cannot read {path / 'tokenizer.json'}: {error}") from error
        self._model.no_truncation()
        self._model.no_padding()
        self.vocab_size = len(self.token_bytes)
        self.longest = max(map(len, self.token_bytes), default=0) or 1
        self._config = _read_json(path / "tokenizer_config.json")
        added = layout.get("added_tokens") or []
        self.shield = Shield(source, layout)
        self._added: dict[str, int] = {entry["content"]: entry["id"] for entry in added}
        self.special_ids = frozenset(entry["id"] for entry in added if entry.get("special"))
        self.specials = self._special_names()
        self.before, self._after = self._surroundings()
        self.bos_id = self.before[0] if self.before else self.id_of(self.specials["bos_token"])
        self.eos_ids = self._ends()
        self._template = self._find_template(chat_template)

    @staticmethod
    def load(path: str = "", revision: str = "", chat_template: str = "") -> Tokenizer:
        """From a directory or a hub id; ``""`` is the embedded model. Raises TokenizerError."""
        return Tokenizer(locate(path, revision), chat_template)

    # -- text and ids ---------------------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = True) -> array[int]:
        """Ids of ``text`` (int32); control tokens written in it are recognised.

        ``add_special_tokens`` puts the model's own before and after it, unless ``text`` already
        begins (ends) with them. Raises ValueError on lone surrogates.
        """
        try:
            if len(text) < LONG:
                found = self._model.encode(text, add_special_tokens=False).ids
            else:  # of the library's methods only those for batches release the GIL
                found = self._model.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError("the text is not valid Unicode: it holds a lone surrogate") from error
        if add_special_tokens:
            before, after = self.before, self._after
            if before and found[: len(before)] != before:
                found = before + found
            if after and found[-len(after) :] != after:
                found = found + after
        return array("i", found)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of ``ids``; ids past the vocabulary have none."""
        table = self.token_bytes
        hidden: frozenset[int] = self.special_ids if skip_special else frozenset()
        pieces = (table[i] for i in ids if 0 <= i < len(table) and i not in hidden)
        return b"".join(pieces).decode("utf-8", "replace")

    def detokenizer(self, skip_special: bool = True) -> Detokenizer:
        """A fresh incremental decoder."""
        return Detokenizer(self.token_bytes, self.special_ids if skip_special else ())

    def id_of(self, piece: str) -> int | None:
        """The id of an added token or a vocabulary entry, None where there is none."""
        if not piece:
            return None
        found = self._added.get(piece)
        return self._model.token_to_id(piece) if found is None else found

    def vocabulary(self, size: int = 0, eos: Sequence[int] = ()) -> Vocabulary:
        """What a grammar must know. ``size`` is the number of logits, ``eos`` the model's own end
        tokens."""
        plain = tokenizers.Tokenizer.from_str(self._source)
        plain.encode_special_tokens = True  # control tokens in a text are plain text
        plain.no_truncation()
        plain.no_padding()
        ends = tuple(dict.fromkeys((*eos, *self.eos_ids)))
        return Vocabulary(
            self.token_bytes,
            max(size, self.vocab_size),
            tuple(eos) or self.eos_ids,
            self.special_ids | set(ends),
            Inside(plain, self.token_bytes).encode,
        )

    # -- chat -----------------------------------------------------------------------------------

    @property
    def chat_template(self) -> str | None:
        return self._template.source if self._template else None

    def encode_shielded(self, text: str) -> array[int]:
        """Ids of a rendered conversation in whose texts ``shield`` has put marks. Raises
        ValueError on lone surrogates."""
        try:
            return array("i", self.shield.encode(text))
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError("the text is not valid Unicode: it holds a lone surrogate") from error

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation. Raises ChatTemplateError."""
        if self._template is None:
            raise ChatTemplateError(
                f"the model in {self.path} has no chat template; pass a path or one of "
                f"{', '.join(NAMES)} with --chat-template"
            )
        return self._template.render(messages, add_generation_prompt, **variables)

    def _find_template(self, chosen: str) -> ChatTemplate | None:
        if chosen:
            source = built_in(chosen) or _read(Path(chosen))
            if source is None:
                raise TokenizerError(
                    f"no chat template at {chosen!r}; give a path, or one of {', '.join(NAMES)}"
                )
        else:
            source = _read(self.path / "chat_template.jinja") or self._config.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default") or next(iter(named.values()), None)
        if not source and (name := family_of(self._added)):
            log.info(
                "no chat template in %s; its control tokens are those of %s, so that one is used",
                self.path, name,
            )  # fmt: skip
            source = built_in(name)
        return ChatTemplate(source, self.specials) if source else None

    # -- control tokens -------------------------------------------------------------------------

    def _special_names(self) -> dict[str, str]:
        listed = {**_read_json(self.path / "special_tokens_map.json"), **self._config}
        names = {}
        for role in _ROLES:
            value = listed.get(role)
            value = value.get("content") if isinstance(value, dict) else value
            names[role] = value if isinstance(value, str) else ""
        return names

    def _surroundings(self) -> tuple[list[int], list[int]]:
        """Ids put before and after every text: the post-processor's, unless the config decides."""
        plain = self._model.encode("a", add_special_tokens=False).ids
        whole = self._model.encode("a", add_special_tokens=True).ids
        at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
        before, after = whole[:at], whole[at + len(plain) :]
        for role, side in (("bos_token", before), ("eos_token", after)):
            wanted, token = self._config.get(f"add_{role}"), self.id_of(self.specials[role])
            if wanted is True and not side and token is not None:
                side.append(token)
            elif wanted is False and side == [token]:
                side.clear()
        return before, after

    def _ends(self) -> tuple[int, ...]:
        ends: list[Any] = []
        for name in ("generation_config.json", "config.json"):
            value = _read_json(self.path / name).get("eos_token_id")
            ends += value if isinstance(value, list) else [value]
        ends.append(self.id_of(self.specials["eos_token"]))
        return tuple(dict.fromkeys(i for i in ends if isinstance(i, int)))


def locate(path: str, revision: str = "") -> Path:
    """The local directory of ``path``, fetched from the hub where it is an id.

    Raises TokenizerError.
    """
    if not path:
        return EMBEDDED
    if Path(path).is_dir():
        return Path(path)
    if path == EMBEDDED.name:
        return EMBEDDED
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise TokenizerError(f"no directory {path!r}")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(path, revision=revision or None, allow_patterns=list(_FILES)))
    except Exception as error:
        raise TokenizerError(
            f"{path!r} is no local directory and could not be fetched from the hub: {error}"
        ) from error


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"cannot read {path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    source = _read(path)
    try:
        value = json.loads(source) if source else {}
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return value
