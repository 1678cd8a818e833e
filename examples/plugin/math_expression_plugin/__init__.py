"""Plug-ins for agentrl: arithmetic by written expressions."""
