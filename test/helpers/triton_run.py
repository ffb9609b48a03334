"""Runs cases of the Triton kernels in a process of its own, under TRITON_INTERPRET=1:

    python -m helpers.triton_run attention.decode ... --half attention.cascade ...

Prints one JSON object: dtype -> case -> what went wrong, "" where nothing did. What stands before
``--half`` runs in float32, what stands behind it in float16.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import warnings

import torch
from helpers.triton_place import Place

from benchmark.gpu.interpreter import prepare


def run(name: str, dtype: torch.dtype) -> str:
    module, case = name.split(".")
    try:
        cases = importlib.import_module(f"helpers.triton_{module}").CASES
        by_name = {case.__name__: case for case in cases}
        by_name[case](Place("cpu", dtype, large=False))
    except BaseException:
        return traceback.format_exc()
    return ""


def main(arguments: list[str]) -> None:
    # The interpreter computes lanes that masks leave out: logarithms of 0 and the like.
    warnings.simplefilter("ignore", RuntimeWarning)
    torch.set_num_threads(1)
    prepare()
    at = arguments.index("--half")
    single = {name: run(name, torch.float32) for name in arguments[:at]}
    half = {name: run(name, torch.float16) for name in arguments[at + 1 :]}
    print(json.dumps({"float32": single, "float16": half}))


if __name__ == "__main__":
    main(sys.argv[1:])
