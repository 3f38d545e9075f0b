"""The training data of a rank: in which order, who loads what, how far ahead, and what that took."""

from trimaran.runtime.data.batch_shares import Share, Shares
from trimaran.runtime.data.datasets import (
    check_length,
    check_streamed,
    data_length,
    dataset_length,
    make_dataset,
    make_evaluation_dataset,
)
from trimaran.runtime.data.orders import draw_order, sample_order
from trimaran.runtime.data.pipeline import Feed, open_feed
from trimaran.runtime.data.prefetch import Loading
from trimaran.runtime.data.streaming import StreamReader

__all__ = [
    "Feed",
    "Loading",
    "Share",
    "Shares",
    "StreamReader",
    "check_length",
    "check_streamed",
    "data_length",
    "dataset_length",
    "draw_order",
    "make_dataset",
    "make_evaluation_dataset",
    "open_feed",
    "sample_order",
]
