"""Plug-ins for agentrl: arithmetic in written expressions."""
