"""Where rows come from: the logs of routers, and their sets of ids."""
