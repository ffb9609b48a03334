"""A ReAct agent's recorded traces, replayed."""
