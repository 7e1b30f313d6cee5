"""Measurements: medians and ratios within one run, never asserted as times in tests."""
