"""Tokenizer: converts text to ids and back, by a model's files (``tokenizer/tokenizer_source``)."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from sglang.srt.core import heap
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.files.location import EMBEDDED, TOKENIZER_FILES, locate
from sglang.srt.tokenizer import tokenizer_source
from sglang.srt.tokenizer.control_tokens import ControlTokenEscaper
from sglang.srt.tokenizer.detokenizer import Detokenizer
from sglang.srt.tokenizer.encoding_pieces import can_cut, last_cut, pieces
from sglang.srt.tokenizer.jinja_chat_template import ChatTemplateError, JinjaChatTemplate
from sglang.srt.tokenizer.templates import NAMES, built_in, family_of
from sglang.srt.tokenizer.token_bytes import piece_bytes
from sglang.srt.tokenizer.tokenizer_files import MAX_TOKENS, TokenizerError, failed, told

log = logging.getLogger("sglang.tokenizer")

__all__ = ["EMBEDDED", "LONG", "Tokenizer", "TokenizerError"]

LONG = 1 << 12  # characters from which on ``encode`` releases the GIL
HUGE = 1 << 15  # characters from which on the heap is trimmed: tens of megabytes become free
MAX_NAME, MAX_NAMES = 1 << 8, 1 << 18  # most characters of a control token, and of all together
MARKS = ("\n", "\x00")  # texts that hardly any tokenizer merges with a following text
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class Tokenizer:
    """A model's tokenizer and chat template.

    Attributes:
        path: the directory or GGUF file that was read.
        token_bytes: bytes of every id; those of a control token are its literal text. The text of
            ids is the concatenation of their bytes, decoded as UTF-8 with errors replaced.
        special_ids: ids of control tokens, which ``skip_special`` hides.
        eos_ids: ids that end a generation.
        bos_id: the id that begins every sequence; None if the model has none.
        before, after: ids that ``encode`` puts before and after a text.
        vocab_size: one more than the largest id.
        longest: number of bytes of the longest token.
        control_tokens: escapes control tokens in the texts of users.
    """

    def __init__(self, path: Path, chat_template: str = "") -> None:
        """Read directory or file ``path``. ``chat_template``: path of a template, or name of a
        built-in one, to use in place of the model's.

        Raises TokenizerError.
        """
        self.path = path
        source = tokenizer_source.read(path)
        self._text, self._config, self._file = source.text, source.config, source.path
        with told(source.path):
            self._model = tokenizers.Tokenizer.from_str(source.text)
            self._model.no_truncation()
            self._model.no_padding()
            added = self._added_tokens(source.layout)
            vocab = self._model.get_vocab(with_added_tokens=True)
            if vocab and max(vocab.values()) >= MAX_TOKENS:
                piece = max(vocab, key=vocab.__getitem__)
                raise ValueError(
                    f"token {piece!r:.80} has id {vocab[piece]}; ids are below {MAX_TOKENS}"
                )
            self.token_bytes = piece_bytes(vocab, source.layout)
            self.control_tokens = ControlTokenEscaper(source.text, source.layout)
        self._can_cut = can_cut(source.layout)
        self.vocab_size = len(self.token_bytes)
        self.longest = max(map(len, self.token_bytes), default=0) or 1
        self._added: dict[str, int] = {entry["content"]: entry["id"] for entry in added}
        self.special_ids = frozenset(entry["id"] for entry in added if entry.get("special"))
        self.specials = self._special_names()
        with told(source.path):
            self.before, self.after = self._surroundings()
        self.bos_id = self.before[0] if self.before else self.id_of(self.specials["bos_token"])
        end = self.id_of(self.specials["eos_token"])
        ends = source.ends if end is None else (*source.ends, end)
        self.eos_ids = tuple(dict.fromkeys(ends))
        self._template = self._find_template(chat_template)

    def _added_tokens(self, layout: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the layout's added tokens with the ids that the library gives them. The library
        ignores the ids in the file. Raises ValueError."""
        listed = layout.get("added_tokens") or []
        names = [entry["content"] for entry in listed if entry.get("special")]
        if max(map(len, names), default=0) > MAX_NAME or sum(map(len, names)) > MAX_NAMES:
            raise ValueError(
                f"control tokens have at most {MAX_NAME} characters, all of them {MAX_NAMES}"
            )
        ids = {token.content: i for i, token in self._model.get_added_tokens_decoder().items()}
        added = [entry for entry in listed if entry["content"] in ids]
        for entry in added:
            number = ids[entry["content"]]
            if entry["id"] != number:
                log.warning("%s: token %r has id %d", self._file, entry["content"], number)
            entry["id"] = number
        layout["added_tokens"] = added
        return added

    @staticmethod
    def load(path: str = "", revision: str = "", chat_template: str = "") -> Tokenizer:
        """Load a directory or a hub id; ``""`` is the embedded model. Raises TokenizerError."""
        try:
            found = locate(path, revision, TOKENIZER_FILES)
        except ValueError as error:
            raise TokenizerError(str(error)) from error
        return Tokenizer(found, chat_template)

    # -- text and ids ---------------------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = True) -> array[int]:
        """Return the ids of ``text`` (int32). Control tokens written in the text are recognised.

        ``add_special_tokens`` adds the ids ``before`` and ``after``, unless the text already begins
        (ends) with them. Raises ValueError on lone surrogates.
        """
        found = array("i")
        for piece in self.pieces(text):
            found += self.encode_piece(piece)
        return self.framed(found) if add_special_tokens else found

    def pieces(self, text: str) -> Iterable[str]:
        """Return pieces of a text whose concatenated ids are the text's ids. Tokenizing pieces
        takes less memory. If this tokenizer cannot cut texts, the only piece is the text."""
        return pieces(text) if self._can_cut else (text,)

    def last_cut(self, text: str) -> int:
        """Return the last position at which the text can be cut: the ids before it do not depend on
        the text after it. 0: there is none, or this tokenizer cannot cut texts."""
        return last_cut(text) if self._can_cut else 0

    def encode_pieces(self, texts: Sequence[str]) -> list[array[int]]:
        """Return the result of ``encode_piece`` for each text. Raises ValueError on lone
        surrogates."""
        try:
            found = self._model.encode_batch_fast(list(texts), add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError("the text is not valid Unicode: it holds a lone surrogate") from error
        except BaseException as error:
            raise failed(error, self._file) from None
        return [array("i", each.ids) for each in found]

    def encode_piece(self, text: str) -> array[int]:
        """Return the ids of one of ``pieces``. Raises ValueError on lone surrogates."""
        try:
            if len(text) < LONG:
                found = self._model.encode(text, add_special_tokens=False).ids
            else:  # only the library's methods for batches release the GIL
                found = self._model.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError("the text is not valid Unicode: it holds a lone surrogate") from error
        except BaseException as error:
            raise failed(error, self._file) from None
        if len(text) >= HUGE:
            heap.trim()
        return array("i", found)

    def encode_behind(self, text: str) -> array[int]:
        """Return the ids of a text that follows another text. Control tokens are recognised, except
        those that ``control_tokens`` has escaped. Raises ValueError on lone surrogates."""
        infix, escaper = self._infix, self.control_tokens
        marked = infix.mark + text
        try:
            if escaper.must_encode(text):
                return array("i", infix.without_mark(escaper.encode(marked)))
            # Only the library's methods for batches release the GIL.
            found = self._model.encode_batch_fast([marked], add_special_tokens=False)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError("the text is not valid Unicode: it holds a lone surrogate") from error
        return array("i", infix.without_mark(found))

    @cached_property
    def _infix(self) -> InfixEncoder:
        return InfixEncoder(self._model, self.token_bytes)

    def framed(self, ids: array[int]) -> array[int]:
        """Return the ids of a text with ``before`` and ``after`` added, unless they are there."""
        before, after = array("i", self.before), array("i", self.after)
        if before and ids[: len(before)] != before:
            ids = before + ids
        if after and ids[-len(after) :] != after:
            ids = ids + after
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of ``ids``. Ids beyond the vocabulary have no text."""
        table = self.token_bytes
        hidden: frozenset[int] = self.special_ids if skip_special else frozenset()
        pieces = (table[i] for i in ids if 0 <= i < len(table) and i not in hidden)
        return b"".join(pieces).decode("utf-8", "replace")

    def detokenizer(self, skip_special: bool = True) -> Detokenizer:
        """Return a new incremental decoder."""
        return Detokenizer(self.token_bytes, self.special_ids if skip_special else ())

    def id_of(self, piece: str) -> int | None:
        """Return the id of an added token or a vocabulary entry; None for an unknown one."""
        if not piece:
            return None
        found = self._added.get(piece)
        return self._model.token_to_id(piece) if found is None else found

    def vocabulary(self, size: int = 0, eos: Sequence[int] = ()) -> Vocabulary:
        """Return the vocabulary for grammars. ``size``: number of logits. ``eos``: the model's own
        end tokens."""
        plain = tokenizers.Tokenizer.from_str(self._text)
        plain.encode_special_tokens = True  # control tokens in a text are plain text
        plain.no_truncation()
        plain.no_padding()
        ends = tuple(dict.fromkeys((*eos, *self.eos_ids)))
        return Vocabulary(
            self.token_bytes,
            max(size, self.vocab_size),
            tuple(eos) or self.eos_ids,
            self.special_ids | set(ends),
            InfixEncoder(plain, self.token_bytes).encode,
        )

    # -- chat -----------------------------------------------------------------------------------

    @property
    def chat_template(self) -> str | None:
        return self._template.source if self._template else None

    def encode_escaped(self, text: str) -> array[int]:
        """Return the ids of a rendered conversation with escaped control tokens. Raises ValueError
        on lone surrogates."""
        try:
            found = array("i", self.control_tokens.encode(text))
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError("the text is not valid Unicode: it holds a lone surrogate") from error
        if len(text) >= HUGE:
            heap.trim()
        return found

    @property
    def template(self) -> JinjaChatTemplate | None:
        return self._template

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the prompt text of a conversation. Raises ChatTemplateError."""
        if self._template is None:
            raise ChatTemplateError(
                f"the model in {self.path} has no chat template; pass a path or one of "
                f"{', '.join(NAMES)} with --chat-template"
            )
        return self._template.render(messages, add_generation_prompt, **variables)

    def _find_template(self, chosen: str) -> JinjaChatTemplate | None:
        if chosen:
            source = built_in(chosen) or _read(Path(chosen))
            if source is None:
                raise TokenizerError(
                    f"no chat template at {chosen!r}; give a path, or one of {', '.join(NAMES)}"
                )
        else:
            source = self._config.get("chat_template")
        if isinstance(source, list):  # several templates with names
            entries = [entry for entry in source if isinstance(entry, dict)]
            named = {str(entry.get("name")): entry.get("template") for entry in entries}
            source = named.get("default") or next(iter(named.values()), None)
        if source is not None and not isinstance(source, str):
            raise TokenizerError(f"the chat template in {self.path} is {source!r:.80}, no text")
        if not source and (name := family_of(self._added)):
            log.info(
                "no chat template in %s; it has the control tokens of %s, whose template is used",
                self.path, name,
            )  # fmt: skip
            source = built_in(name)
        return JinjaChatTemplate(source, self.specials) if source else None

    # -- control tokens -------------------------------------------------------------------------

    def _special_names(self) -> dict[str, str]:
        names = {}
        for role in _ROLES:
            value = self._config.get(role)
            value = value.get("content") if isinstance(value, dict) else value
            names[role] = value if isinstance(value, str) else ""
        return names

    def _surroundings(self) -> tuple[list[int], list[int]]:
        """Return the ids put before and after every text: those of the tokenizer's post-processor,
        unless the configuration (``add_bos_token``, ``add_eos_token``) overrides them."""
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


class InfixEncoder:
    """Encodes texts as if they were in the middle of a longer text.

    Sentencepiece-style tokenizers put a space before a text. To avoid this, a text is encoded after
    a mark, and the mark's tokens are removed. If the tokenizer merges every mark with the text, the
    text is encoded without a mark; its bytes then begin with the space.

    Attributes:
        mark: the text put before each text; "" if none is needed.
    """

    def __init__(self, model: tokenizers.Tokenizer, table: Sequence[bytes]) -> None:
        self._model, self._table = model, table
        for self.mark in ("", *MARKS):
            if self._separable():
                return
        self.mark = ""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        if len(texts) == 1:
            found = [self._model.encode(self.mark + texts[0], add_special_tokens=False).ids]
        else:
            marked = [self.mark + text for text in texts]
            encoded = self._model.encode_batch_fast(marked, add_special_tokens=False)
            found = [each.ids for each in encoded]
        return [self.without_mark(ids) for ids in found]

    def _separable(self) -> bool:
        (ids,) = self.encode(["a"])
        return b"".join(self._table[i] for i in ids) == b"a"

    def without_mark(self, ids: list[int]) -> list[int]:
        """Return the ids of a text that was encoded after the mark, without the mark's ids."""
        if not self.mark:
            return ids
        seen = b""
        for i, token in enumerate(ids):
            seen += self._table[token]
            if seen.lstrip(b" ") == self.mark.encode() or seen == self.mark.encode():
                return ids[i + 1 :]
        return ids


def _read(path: Path) -> str | None:
    """Return the text of a template's file; None if the file does not exist. Raises
    TokenizerError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"cannot read {path}: {error}") from error
