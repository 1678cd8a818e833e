"""Inference engines: a client and a router for servers of the native API, their launch, an engine of our own."""
