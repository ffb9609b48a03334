"""Sentence completion by the likeliest of four endings: HellaSwag's form."""
