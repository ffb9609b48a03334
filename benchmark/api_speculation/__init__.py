"""Fields of a page from an API model, in one call instead of one a field."""
