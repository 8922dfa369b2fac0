"""The communicator: its collectives, messages, groups and meshes, and how a call gets into the core."""
