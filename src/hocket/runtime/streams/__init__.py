"""Streams, events and works: operations that are launched now and waited for later."""
