"""Standalone services that agents reach over HTTP only."""
