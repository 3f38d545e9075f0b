"""The training data of a rank: in which order, who loads what, how far ahead, and what that took."""

from trimaran.runtime.data.batch_shares import Share
from trimaran.runtime.data.datasets import make_evaluation_dataset
from trimaran.runtime.data.orders import sample_order
from trimaran.runtime.data.pipeline import Feed, open_feed
from trimaran.runtime.data.prefetch import Loading

__all__ = ["Feed", "Loading", "Share", "make_evaluation_dataset", "open_feed", "sample_order"]
