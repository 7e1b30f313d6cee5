"""Test vectors of docs/protocol.md: written by the product, read by the product and the reference.

`python -m tests.vectors.generate` writes them; README.md says what each file holds.
"""
