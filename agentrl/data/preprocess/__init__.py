"""Datasets from public sources or generators: one module each; all write the rows that docs/data.md describes."""
