"""Checkpoints: files from which a training goes on, and the plain weights of a model.

store.py       the commit protocol: directories, manifest, marker, verification, removal
disk.py        what it asks of a file system
container.py   tensors in safetensors files, written as a stream, read in slices
pieces.py      tensors in pieces: who writes which, and how a rank puts together what it needs
plain.py       what is no tensor, as plain JSON, exactly
training_state.py   the whole state of a training on one rank, taken and put back under any plan
saving.py      saves in the background of a training, and finds what was saved
weights.py     the user's `state_dict` in one file
"""

FOLDER, STATE = "checkpoints", "state.json"
"""Folder of the checkpoints of a run, and the file of each with what is no tensor."""
