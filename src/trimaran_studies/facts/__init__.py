"""Facts of public sources that rows of published measurements refer to."""
