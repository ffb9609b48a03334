"""Times of kernels and passes on a GPU, beside the limits of the hardware."""
