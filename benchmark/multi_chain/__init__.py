"""Several chains of reasoning on one problem, and an answer that reads them all."""
