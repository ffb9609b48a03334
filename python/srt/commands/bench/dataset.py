"""Dataset: the flags of a workload, by upstream's names, and the conversations that they make."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

from sglang.srt.commands.bench.workload import (
    Conversation,
    WorkloadTokens,
    random_lengths,
    shared_prefix,
)

DATASETS = ("random", "random-ids", "generated-shared-prefix")


@dataclass(frozen=True)
class Dataset:
    """Requests of random token ids; ``random`` and ``random-ids`` are the same here.

    A field is a flag. Lengths are in tokens; ``random_range_ratio`` is the least share of the
    length that a request has. ``gsp`` is the generated shared prefix.
    """

    dataset_name: str = "random"
    num_prompts: int = 1000
    seed: int = 1
    random_input_len: int = 1024
    random_output_len: int = 1024
    random_range_ratio: float = 0.0
    gsp_num_groups: int = 64
    gsp_prompts_per_group: int = 16
    gsp_system_prompt_len: int = 2048
    gsp_question_len: int = 128
    gsp_output_len: int = 256

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add a flag for each field."""
        group = parser.add_argument_group("dataset")
        for name, default in vars(Dataset()).items():
            group.add_argument(
                "--" + name.replace("_", "-"),
                type=type(default),
                default=default,
                choices=DATASETS if name == "dataset_name" else None,
                help="default: %(default)s",
            )

    @staticmethod
    def from_cli_args(args: argparse.Namespace) -> Dataset:
        """The fields among parsed arguments. Raises ValueError for one that is out of range."""
        dataset = Dataset(**{name: getattr(args, name) for name in vars(Dataset())})
        for name, value in vars(dataset).items():
            if isinstance(value, int) and value < 1 and name != "seed":
                raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        if not 0 <= dataset.random_range_ratio <= 1:
            raise ValueError(
                f"--random-range-ratio is {dataset.random_range_ratio}; it must be from 0 to 1"
            )
        return dataset

    def work(self, tokens: WorkloadTokens | None = None) -> list[Conversation]:
        """The requests. The same fields make the same ones. Of a generated shared prefix there are
        groups times prompts of each; of others ``num_prompts``."""
        rng, tokens = random.Random(self.seed), tokens or WorkloadTokens()
        if self.dataset_name == "generated-shared-prefix":
            return shared_prefix(
                rng, tokens, self.gsp_num_groups * self.gsp_prompts_per_group,
                prefixes=self.gsp_num_groups, prefix_len=self.gsp_system_prompt_len,
                question_len=self.gsp_question_len, output_len=self.gsp_output_len,
            )  # fmt: skip
        return random_lengths(
            rng, tokens, self.num_prompts, input_len=self._range(self.random_input_len),
            output_len=self._range(self.random_output_len),
        )  # fmt: skip

    def _range(self, length: int) -> tuple[int, int]:
        return max(1, int(length * self.random_range_ratio)), length
