"""The subcommands of ``sglang`` that serve nothing themselves."""
