"""Which rank this is, on which cores it may run, what each rank has one of, and how its process ends."""
