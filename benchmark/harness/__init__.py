"""Tools that every claim of the paper is measured with: claims, sides, runs, hit rates,
ablations."""
