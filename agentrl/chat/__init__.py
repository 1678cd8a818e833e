"""Messages to token ids and back: rendering, delta rendering, the template probe and tool-call parsers."""
