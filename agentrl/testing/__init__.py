"""Helpers for tests of agentrl and of plug-ins: tiny models, contract tests, fault injection."""
