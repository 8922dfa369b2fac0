"""Traces: the timeline, its summary and tables, a picture, and a page for a browser."""
