"""What jump-forward brings where JSON is decoded under a constraint, and what constraints cost."""
