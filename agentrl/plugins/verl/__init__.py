"""Runs plug-ins written for verl unchanged: `adapters` wrap them, `import_hook` serves their imports."""
