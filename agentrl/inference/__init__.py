"""Engines over SGLang's HTTP API: client and router, the processes that run engines, the embedded one."""
