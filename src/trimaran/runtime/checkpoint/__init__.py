"""Checkpoints: files from which a training goes on, and the plain weights of a model.

store.py       the commit protocol: directories, manifest, marker, verification, removal
disk.py        what it asks of a file system
container.py   tensors in safetensors files, written as a stream, read in slices
weights.py     the user's `state_dict` in one file
"""
