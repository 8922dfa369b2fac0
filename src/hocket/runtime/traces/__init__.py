"""Traces of what each rank does and when: recorded by the core, turned into events, written to one file."""
