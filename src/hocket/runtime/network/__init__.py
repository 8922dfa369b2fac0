"""Connections between ranks: which may be opened, and how both ends show each other that they belong to one job."""
