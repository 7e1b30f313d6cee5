"""A second implementation of docs/protocol.md: slow, plain integers, no code of the product.

Source: docs/protocol.md, section by section; `Refused.step` names the section and number of a rule.
"""
