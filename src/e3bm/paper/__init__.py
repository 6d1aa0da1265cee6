"""What is only about the paper: its tables, presets, ablations, what E3BM costs, and ours side by side with it."""
