"""Bodies whose fields are a closed set: one that is not known is refused by its name."""

from __future__ import annotations

import msgspec
import pytest
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.programs.program_bodies import OpenProgramSession
from sglang.srt.runtime.request_fields import convert
from sglang.srt.web.inferlet_api.inferlet_bodies import MessageBody, RunBody, UploadBody


@pytest.mark.parametrize("kind", [UploadBody, RunBody, MessageBody, OpenProgramSession])
@pytest.mark.parametrize("name", ["turncpu", "", "a` - at `$.b", "x" * 9000])
def test_an_unknown_field_is_named(kind: type[msgspec.Struct], name: str) -> None:
    convert({}, kind)
    with pytest.raises(RequestError) as caught:
        convert({name: 0.1}, kind)
    known = ", ".join(kind.__struct_fields__) or "none"
    assert str(caught.value).endswith(f"; known are {known}.")
    assert (caught.value.param or "")[:40] == name[:40]
    assert name[:40] in str(caught.value)
    assert len(str(caught.value)) < 1000
