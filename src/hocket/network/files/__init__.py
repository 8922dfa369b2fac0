"""Networks from files: our YAML, ASTRA-sim, SimAI, Slurm."""
