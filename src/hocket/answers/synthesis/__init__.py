"""hocket.optimum and hocket.synthesise: the best bandwidth of a network, and schedules that reach it."""
