"""The parts of the job `audit`: what is read, packed, settled and written."""
