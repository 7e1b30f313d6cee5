"""The demo: a whole collection on three servers in this process, with its promises put to the test.

Only this package puts both sides together: it starts servers, so it alone imports their code.
"""
