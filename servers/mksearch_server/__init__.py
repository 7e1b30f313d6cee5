"""A search server: it stores what it cannot read and multiplies what it cannot see."""
