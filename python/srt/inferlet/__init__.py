"""Programs that hold pages: the control layer of inferlets (Pie, section 5.2)."""
