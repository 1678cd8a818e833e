"""Datasets: parquet rows checked into `Sample`s (`dataset`), a loader that resumes exactly, and `preprocess/`."""
