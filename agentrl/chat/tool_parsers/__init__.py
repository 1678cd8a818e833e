"""Parsers that find tool calls in the text of an assistant turn, one per format, found by name."""
