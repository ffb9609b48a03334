"""The Messages routes of the Anthropic API."""
