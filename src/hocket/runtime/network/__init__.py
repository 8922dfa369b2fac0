"""Connections between ranks: who may open them, and how both ends show each other that they belong to one job."""
