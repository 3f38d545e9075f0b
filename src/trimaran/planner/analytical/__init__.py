"""Which degrees a transformer on many devices should have: search over divisions by closed forms, no trace needed."""
