"""The built-in networks, as plain modules. Import the file of the one you need: each imports torch, this does not."""
