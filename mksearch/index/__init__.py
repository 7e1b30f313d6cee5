"""The encrypted index: columns, order, levels, blocks, records, streams, segment, manifest.

Every structure has a writer, a layout and a reader; the layouts are those of docs/protocol.md.
"""
