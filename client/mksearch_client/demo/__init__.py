"""The demo: a whole collection on servers of this machine, with its promises put to the test."""
