"""The operator's tools: functions of a module that the server runs in child processes."""
