"""Starts ranks in a Ray cluster: hocket.ray.run(function, 8)."""

from hocket.runtime import run_on_ray as run

__all__ = ["run"]
