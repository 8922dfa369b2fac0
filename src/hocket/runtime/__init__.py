"""Ranks: where they are, how they meet, start and end, and the communicator they share."""
