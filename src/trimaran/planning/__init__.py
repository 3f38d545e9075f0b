"""From a request to a plan: measured on this machine, estimated for a target cluster, or by the analytical model."""
