"""Hocket beside other libraries, on the same buffers with the same protocol: the parts of benchmarks/compare.py."""
