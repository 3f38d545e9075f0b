"""Memory virtualization: executes a memory plan from inside autograd, by one pair of saved-tensor hooks."""
