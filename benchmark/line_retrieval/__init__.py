"""Line retrieval: questions about one long document, whose pieces are encoded side by side."""
