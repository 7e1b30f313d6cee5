"""`./dev containers`: images are built, and three servers run in them as of three operators."""
