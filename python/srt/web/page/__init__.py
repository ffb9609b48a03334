"""The web page at /, and the data of its live view."""
