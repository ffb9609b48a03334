"""Times of kernels and passes on a GPU, compared with the limits of the hardware."""
