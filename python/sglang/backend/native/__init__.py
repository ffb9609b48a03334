"""The native API of this project's runtime, over HTTP."""
