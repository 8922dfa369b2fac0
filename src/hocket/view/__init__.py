"""EXPLAIN: pictures, tables and text of schedules, networks, costs and traces, for notebooks and for the commands."""
