"""Rules of programs and strategies, checked before anything runs."""
