"""The soak: everything at once for a long time, with kills, and exact accounts at the end."""
