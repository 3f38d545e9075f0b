"""Checkpoints of a training, and the plain weights of a model; their files are those of `checkpoint_files`.

training_state.py   the whole state of a training on one rank, taken and put back under any plan
saving.py           saves in the background of a training, and finds what was saved
weights.py          the user's `state_dict` in one file; weights of checkpoints and of others, compared with a model
"""

STATE = "state.json"
"""File of a checkpoint with what is no tensor."""
