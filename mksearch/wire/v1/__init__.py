"""Generated from ``proto/mksearch/wire/v1``; never edited by hand."""
