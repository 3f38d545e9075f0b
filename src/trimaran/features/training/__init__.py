"""Training by a plan: the session, callbacks, ranks and what a run leaves."""
