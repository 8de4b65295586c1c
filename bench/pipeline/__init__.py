"""What the jobs of the pipeline take, against others that do the same work."""
