"""Calibration: reads measured times from logs of benchmarks, fits a machine to them, and finds what slows a call down."""
