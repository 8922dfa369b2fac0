"""What each rank did and when: recorded by the core, turned into events, written to one file."""
