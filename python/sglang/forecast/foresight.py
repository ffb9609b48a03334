"""Foresight: what a program tells of itself before it is run. Nothing is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from sglang.backend.base import Backend
from sglang.ir.params import GenParams

if TYPE_CHECKING:
    from sglang.forecast import Plan
    from sglang.forecast.explain import Explanation
    from sglang.forecast.rehearsal import Answers
    from sglang.program import SglFunction

Item = Mapping[str, Any] | Sequence[Any]


class Foresight:
    """Base of ``SglFunction``, which says how its arguments are sorted and its backend is found."""

    def _resolved(self, backend: Any) -> Backend:
        raise NotImplementedError

    def _sorted(self, kwargs: dict[str, Any]) -> tuple[GenParams, dict[str, Any]]:
        raise NotImplementedError

    def _parameters(self, kwargs: dict[str, Any], what: str) -> GenParams:
        raise NotImplementedError

    def explain(
        self,
        *args: Any,
        backend: Any = None,
        answers: Answers | None = None,
        **kwargs: Any,
    ) -> Explanation:
        """Exactly what ``run`` would send, call by call; print it. Nothing is sent.

        Generated values stand as ``⟨name⟩`` and a select takes its first option, unless ``answers``
        has a text for the name, or several to be used in turn (the last one again and again). With
        ``num_api_spec_tokens`` a chat reply is taken to follow the program, a completion to save no
        call. Raises SglangError where the program fails on such values, or makes over 1000 calls.
        """
        from sglang.forecast.explain import explain

        params, arguments = self._sorted(kwargs)
        program = cast("SglFunction", self)
        answers = {} if answers is None else answers
        return explain(program, self._resolved(backend), args, arguments, params, answers)

    def plan(
        self,
        batch: Item | Sequence[Item],
        *,
        backend: Any = None,
        answers: Answers | Sequence[Answers] | None = None,
        lengths: Mapping[str, int] | None = None,
        prices: Mapping[str, float] | None = None,
        media_tokens: int | None = None,
        **kwargs: Any,
    ) -> Plan:
        """What ``run_batch`` would have computed: the prompts as a tree, what of them is found in
        the cache, the tokens to compute and to generate; print it. No prompt is sent.

        Args:
            batch: items as ``run_batch`` takes them, or one.
            answers: texts of generated values, as of ``explain``; or such a dict for each item.
                Without one a value is text that nobody knows, of as many tokens as it may have,
                and a select takes its first option.
            lengths: tokens of such texts, by name.
            prices: dollars for a million tokens: "input", "output" and, where the service has a
                price for what it finds in its cache, "cached".
            media_tokens: tokens that each image or video counts for.
            kwargs: generation parameters, as of ``run_batch``.

        Raises:
            SglangError: as ``explain``; the program shows media and ``media_tokens`` is not given.
            BackendError: the backend cannot be asked how it tokenizes.
        """
        from sglang.batch.run_batch import item_of
        from sglang.forecast import plan

        params = self._parameters(kwargs, "plan")
        program = cast("SglFunction", self)
        items = [item_of(program, item) for item in _items(batch)]
        return plan(
            program, self._resolved(backend), items, params, answers=answers, lengths=lengths,
            prices=prices, media_tokens=media_tokens,
        )  # fmt: skip


def _items(batch: Any) -> Sequence[Any]:
    """Of a batch, which may be one item."""
    if isinstance(batch, Mapping):
        return [batch]
    if isinstance(batch, str) or not isinstance(batch, Iterable):
        raise TypeError(f"batch is {batch!r:.60}; give a list of items, each a dict or a tuple")
    if isinstance(batch, tuple) and not all(isinstance(i, (Mapping, list, tuple)) for i in batch):
        return [batch]
    return list(batch)
