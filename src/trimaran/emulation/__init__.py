"""More devices than there are, on slower links: rate limits between local ranks, programs with simulated compute."""
