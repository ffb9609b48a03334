"""The paper's evaluation in one run: every claim, every contender, every ablation, one page."""
