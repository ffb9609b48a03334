"""Five-shot questions with four options, one token an answer: MMLU's form."""
