"""`./dev containers`: the images are built, and three servers run in them as three operators would."""
