"""Machines: kinds of hosts with the GPU library that was measured on them, as files of constants."""
