"""Buckets: tensors that lie side by side in registered memory, so that one collective communicates many of them."""
