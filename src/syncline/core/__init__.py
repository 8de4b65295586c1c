"""What the router decides: machines that take a command and return an outcome, without any I/O."""
