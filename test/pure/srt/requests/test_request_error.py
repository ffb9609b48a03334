"""RequestError and Reworded."""

from __future__ import annotations

import gc
import weakref

import pytest
from sglang.srt.requests.request_error import RequestError, Reworded


def shout(error: RequestError) -> RequestError:
    return error.reworded(error.message.upper(), "b")


def test_reworded_keeps_code_retry_and_cause() -> None:
    first = RequestError("wait", "a", "overloaded", 7)
    with pytest.raises(RequestError) as caught, Reworded(shout):
        raise first
    error = caught.value
    assert (error.message, error.param, error.code, error.retry) == ("WAIT", "b", "overloaded", 7)
    assert error.__cause__ is first


def test_reworded_passes_other_errors() -> None:
    with pytest.raises(ValueError, match=r"^other$"), Reworded(shout):
        raise ValueError("other")
    with Reworded(shout):
        pass


def test_reworded_leaves_no_reference_cycle() -> None:
    class Payload:
        """An object of the refused call."""

    def refused() -> weakref.ref[Payload]:
        payload = Payload()
        try:
            with Reworded(shout), Reworded(shout):
                raise RequestError("too long")
        except RequestError:
            return weakref.ref(payload)

    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()
