"""Several questions about each image, as LLaVA-Bench (In-the-Wild) asks them."""
