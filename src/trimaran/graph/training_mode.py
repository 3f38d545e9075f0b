"""The mode in which a job's model is trained, and how others are entered.

A plain training loop calls `model.train()` before its first step. So does `begin_training`, with what such a loop
leaves to the person who wrote the model:

- a model that its factory returns in evaluation mode, as Hugging Face's `from_pretrained` does, is trained in training
  mode
- a module that overrides `train()`, to keep frozen batch norms in evaluation mode, is asked
- a part that the factory has put in evaluation mode, inside a model that is in training mode, stays there
"""

import weakref

from torch import nn


def begin_training(model: nn.Module) -> nn.Module:
    """Put a model that its factory has just made into the mode in which it is trained.

    Args:
        model: changed in place

    Returns:
        The model.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout())
        >>> _ = model[1].eval()
        >>> [part.training for part in begin_training(model)]
        [True, False]
        >>> [part.training for part in begin_training(model.eval())]
        [True, True]
    """
    _RETURNED_IN_EVALUATION.setdefault(model, not model.training)
    kept = parts_in_evaluation(model)
    model.train()
    for part in kept:
        part.training = False
    return model


_RETURNED_IN_EVALUATION: "weakref.WeakKeyDictionary[nn.Module, bool]" = weakref.WeakKeyDictionary()


def was_in_evaluation(model: nn.Module) -> bool:
    """Whether a model was in evaluation mode when `begin_training` saw it first."""
    return _RETURNED_IN_EVALUATION.get(model, not model.training)


def parts_in_evaluation(model: nn.Module) -> list[nn.Module]:
    """The modules that are in evaluation mode inside a model that is in training mode; none where the whole is not."""
    return [part for part in model.modules() if not part.training] if model.training else []


def enter_mode(model: nn.Module, *, training: bool) -> None:
    """Put a model into one of its modes, where somebody else puts it back afterwards.

    Args:
        model: changed in place
        training: the mode in which it is trained, where parts of it may be in evaluation mode; else evaluation mode
    """
    if training:
        begin_training(model)
    else:
        model.eval()
