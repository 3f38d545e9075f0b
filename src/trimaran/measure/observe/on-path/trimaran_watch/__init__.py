"""The watch: what runs inside an observed process. Only the standard library and torch, under a separate name.

    arrival   waits for `import torch`, then installs the watch
    ledger    the time of a step, by what it is spent on
    roots     modules that the script calls itself write into the ledger
    hooks     so do autograd, optimizers and loaders
    waits     so do reads of single values and collectives
    facts     what the process is: versions, ranks, model, memory
    output    the record of the process, written as it goes and at its end
    after     once the script is over, its model is timed on larger batches

The package is not imported as a part of Trimaran: an observed process need not have Trimaran's environment, and must
not pay for importing it.
"""
