"""Traces: the timeline, summaries and tables of it, a picture, and a page for a browser."""
