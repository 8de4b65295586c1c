"""`export` and `import`."""


def export() -> None:
    raise NotImplementedError


def import_() -> None:
    raise NotImplementedError
