"""Files of checkpoints, which a crash, a full disk or a flipped bit does not turn into other ones without a word.

store.py       the commit protocol: directories, manifest, marker, verification, removal
disk.py        what it asks of a file system
container.py   tensors in safetensors files, written as a stream, read in slices
pieces.py      tensors in pieces: who writes which, and how a rank puts together what it needs
plain.py       what is no tensor, as plain JSON, exactly
"""
