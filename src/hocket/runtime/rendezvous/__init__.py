"""How ranks meet: each joins, the host gathers them, and sends each what it needs of the others."""
