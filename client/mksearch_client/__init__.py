"""The client of mksearch: reading documents, publishing, searching, and the command line.

Importing the package loads nothing heavy; its modules load what they need.
"""
