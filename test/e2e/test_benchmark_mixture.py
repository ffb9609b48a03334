"""The benchmark of mixtures, tiny: it measures every row, and finds texts that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.mixture import __main__ as benchmark
from benchmark.mixture.models import Experts, Sizes

TINY = ["--width", "128", "--layers", "2", "--inner", "128", "--vocab", "300", "--experts", "4/2",
        "--num-requests", "3", "--input-len", "40", "--output-len", "6", "--rounds", "1",
        "--threads", "1"]  # fmt: skip


def test_every_row_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    assert benchmark.main([*TINY, "--output-file", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["table"].split(",")[0], row["row"]) for row in rows] == [
        (work, f"{model}, {kind}")
        for work in ("decoding", "prompts")
        for model in ("dense", "4 experts, 2 chosen")
        for kind in ("bf16", "int8")
    ]
    assert rows[0]["figures"]["to dense"]["median"] == 1
    # 2 layers of q, k, v and o, three matrices of 64 x 128 for each expert, and the routers.
    assert "4 experts, 2 chosen: 0 M in layers" in capsys.readouterr().out
    attention, expert = 128 * 64 * 6, 3 * 128 * 64
    sizes = Sizes(128, 2, 128, 300)
    assert Experts(4, 2).parameters(sizes) == tuple(
        2 * (attention + n * expert + 4 * 128) for n in (4, 2)
    )
    assert Experts().parameters(sizes)[0] == 2 * (attention + 2 * expert)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [("timed", "a text of round 0 is another one"), ("alone", "has another text alone"),
     ("nan", "log-probabilities")],
)  # fmt: skip
def test_wrong_texts_are_found(wrong: str, message: str) -> None:
    class Engine:
        """An engine that answers with the prompts, except for what is wrong."""

        runs = 0

        def flush_cache(self) -> None:
            self.runs += 1

        def generate(self, input_ids, sampling_params, return_logprob=False):
            alone = len(input_ids) == 1
            shift = (wrong == "alone" and alone) or (wrong == "timed" and self.runs > 3)
            value = float("nan") if wrong == "nan" else -1.0
            return [
                {"output_ids": [ids[0] + shift] * params["max_new_tokens"],
                 "meta_info": {"output_token_logprobs": [(value, 1)] * params["max_new_tokens"]}}
                for ids, params in zip(input_ids, sampling_params)
            ]  # fmt: skip

    with pytest.raises(benchmark.Wrong, match=message):
        benchmark.measure({"one": Engine()}, benchmark.Work(3, 4, 5), 50, 1)
