"""Files of checkpoints, which a crash, a full disk or a flipped bit does not turn into other ones without a word.

commit.py      the commit protocol: directories, manifest, marker, verification, removal
disk.py        what it asks of a file system
container.py   tensors in safetensors files, written as a stream, read in slices
pieces.py      tensors in pieces: who writes which, and how a rank puts together what it needs
plain.py       what is no tensor, as plain JSON, exactly

Weights and optimizer state in formats of others:

content.py     what readers give and writers take: names, forms, and tensors that are read when they are asked for
imports.py     a path, and what is there: safetensors, Hugging Face folders, and by trust torch.save and DCP
exports.py     the same written, whole or not at all
archives.py    files of torch.save
dcp.py         directories of torch.distributed.checkpoint
pickles.py     a pickle as plain data, of which nothing is run
"""
