"""Applications of several calls: Parrot's workloads (section 8), and programs of unequal size."""
