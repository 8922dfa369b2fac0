"""How ranks share the work of training: one file for each strategy, and what the loop asks of them."""
