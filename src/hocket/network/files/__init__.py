"""Networks from files: Hocket's YAML, ASTRA-sim, SimAI, Slurm."""
