"""Networks, meshes and simulated calls: text, tables and pictures."""
