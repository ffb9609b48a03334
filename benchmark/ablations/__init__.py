"""What each part of the engine and of the language brings (the paper's Fig. 8 and Fig. 13)."""
