"""The proof: laws 1 to 5 on a schedule and on the plans that it is lowered to."""
