"""Watching a training script that knows nothing of Trimaran: what its steps are spent on.

    on-path/     what runs inside the observed process: standard library and torch only
    injection    how it gets there
    records      what each process wrote, and a step by what it was spent on
    analysis     from records to where the time of the job goes

Importing this room does not import torch.
"""
