"""Parsers that find tool calls in the text of an assistant turn, one per format, found by name.

`formats.py` is the table of them; `scan.py` is the walk that they share; docs/tool_formats.md shows each format.
"""
