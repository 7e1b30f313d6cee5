"""The GPU engine: what can be proved of it without a GPU, and one script for a machine with one."""
