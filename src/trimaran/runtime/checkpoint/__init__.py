"""Checkpoints of a training, and the plain weights of a model; their files are those of `checkpoint_files`.

take.py             the whole state of a training on one rank, as one process would have it
put_back.py         a training that goes on from a state, under any plan
foreign.py          the state of an optimizer that was saved elsewhere
saving.py           saves in the background of a training, and finds what was saved
weights.py          the user's `state_dict` in one file; weights of checkpoints and of others, compared with a model
"""

STATE = "state.json"
"""File of a checkpoint with what is no tensor."""
