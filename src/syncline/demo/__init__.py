"""A router at work, with something going wrong on purpose, and what the pipeline makes of it."""
