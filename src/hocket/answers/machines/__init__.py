"""Predictions of GPU libraries on machines."""
