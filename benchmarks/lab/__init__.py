"""Instruments of research: each answers one question about the core. The floor is the best hand-written code."""
