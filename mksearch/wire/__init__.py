"""The network's messages: generated code in ``v1``, and the converter to the core's messages."""
