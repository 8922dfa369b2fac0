"""The rendezvous: each rank joins, rank 0 gathers them and sends each rank what it needs to know of the others."""
