"""Recipe of the embedded model `sglang-tiny`: data, tokenizer, training, evaluation, export."""
