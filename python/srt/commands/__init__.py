"""The subcommands of ``sglang`` that serve nothing themselves, and the load generator `bench`."""
