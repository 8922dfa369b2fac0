"""Calibration: reads measured times from logs of benchmarks, fits machines to them, finds what slows calls down."""
