"""Engines over SGLang's HTTP API: the client and router that ask them, the processes that run them, the embedded one."""
