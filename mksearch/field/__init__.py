"""Arithmetic over F_p on arrays, and Shamir sharing over it."""
