"""Score functions: from the assistant's text and the ground truth to a number (or a dict with `score`)."""
