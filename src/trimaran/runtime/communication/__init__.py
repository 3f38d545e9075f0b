"""Messages and collectives between ranks: channels, shared memory, hierarchies, compression."""
