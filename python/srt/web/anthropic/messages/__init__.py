"""The Messages routes, in the words of the Anthropic API."""
