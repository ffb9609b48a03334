"""``Engine`` and ``launch_server`` under upstream's module names."""
