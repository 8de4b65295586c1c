"""Where things are kept: Protocols of a backend in `base`, the door to the disk in `files`."""
