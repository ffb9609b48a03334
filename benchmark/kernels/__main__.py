"""``python -m benchmark.kernels``: the native kernels against torch: products and attention."""

from __future__ import annotations

import torch

from benchmark.kernels import attention, gemm

if __name__ == "__main__":
    with torch.inference_mode():
        gemm.main()
        print()
        attention.main()
