"""Datasets made from public sources or by generators: one module each, all writing rows as docs/data.md describes."""
