"""What a user's script and the commands talk to; wires the other rooms. Importing it does not import torch."""
