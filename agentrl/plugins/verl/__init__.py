"""Plug-ins written for verl run unchanged: `adapters` wrap them, `import_hook` answers their imports."""
