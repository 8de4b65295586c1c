"""Which of the files that a process may have open are left to its stores.

Connections are files as well, and whoever opens many of them may take all that the system allows. A
store that cannot open a file has failed, and ends the router. So connections do not get the last.
"""

import resource
from typing import Final

# Many times what a router has open without connections: files of the stores, and connections to
# other routers.
_LEFT_COUNT_MAX: Final = 1_024


def left_to_stores_count() -> int:
    """Of few that this process may have, half."""
    return min(_LEFT_COUNT_MAX, _count_max() // 2)


def is_left_to_stores(file_number: int) -> bool:
    """The system gives out the lowest number that is free: so high a one is among the last."""
    return file_number >= _count_max() - left_to_stores_count()


def _count_max() -> int:
    count_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if count_max == resource.RLIM_INFINITY else count_max
