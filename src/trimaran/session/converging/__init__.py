"""`trimaran converge`: how much training a job needs, batch by batch, on this machine."""
