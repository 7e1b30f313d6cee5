"""Engines: the servers' one operation, bit for bit the same on every one of them."""
