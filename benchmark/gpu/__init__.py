"""What a GPU takes for kernels and passes, beside the most that it can do."""
