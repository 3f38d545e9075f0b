"""Data-parallel gradient exchange: calls, buffers, stragglers, as frameworks do it."""
