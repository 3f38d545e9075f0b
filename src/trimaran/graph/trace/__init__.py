"""One step as it ran: operations, ticks of autograd, storages and how long each is there."""
