"""What every program and every strategy must satisfy, checked before anything runs."""
