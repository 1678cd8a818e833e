"""Datasets: parquet rows checked into `Sample`s, a loader that resumes exactly, and `preprocess/` to make the files."""
