"""The parts of benchmarks/compare.py, which compares libraries on the same buffers with the same protocol."""
