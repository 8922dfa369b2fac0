"""Streams, events and works: what is launched now and waited for later."""
