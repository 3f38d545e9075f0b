"""Text: Hugging Face models from tiny configurations, and transformers and recurrent networks of one's own."""

import functools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from tests.field.entry import Family
from tests.field.vision import adamw
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from trimaran.base.job import Job

LANGUAGE = Family("language")
SAMPLES, BATCH, WORDS, LENGTH = 30, 8, 19, 8


def text_job(name: str, model: Callable[[], Any], **options: Any) -> Job:
    """A job over short texts; the model computes its loss unless one is given."""
    return Job(**{
        "name": name,
        "model": model,
        "loss": None,
        "optimizer": adamw,
        "dataset": Texts,
        "global_batch_size": BATCH,
        "precision": "fp64",
        **options,
    })  # fmt: skip


class Texts(Dataset[Any]):
    """Texts of several lengths, as a tokenizer gives them padded; labels of padding are -100."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = words_of(index)
        mask = torch.zeros(LENGTH, dtype=torch.long)
        mask[: len(ids)] = 1
        padded = functional.pad(ids, (0, LENGTH - len(ids)))
        return {"input_ids": padded, "attention_mask": mask, "labels": padded.masked_fill(mask == 0, -100)}


def words_of(index: int) -> Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randint(2, WORDS, (3 + index * 7 % 6,), generator=generator)


def count_shifted(batch: dict[str, Tensor]) -> float:
    """Labels that a causal language model predicts."""
    return float((batch["labels"][:, 1:] != -100).sum())


def count_labels(batch: dict[str, Tensor]) -> float:
    return float((batch["labels"] != -100).sum())


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=1, use_cache=False,
    )  # fmt: skip
    return in_full_width(GPT2LMHeadModel(config))


def in_full_width(model: Any) -> nn.Module:
    """The library's loss is computed in fp32 whatever the logits are; this one in the dtype of the logits."""

    def causal_loss(logits: Tensor, labels: Tensor, **_: Any) -> Tensor:
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)

    model.loss_function = causal_loss
    return model


@LANGUAGE.entry("GPT-2 of Hugging Face; the loss is a mean over the labels that are not -100", weight=count_shifted)
def hf_causal() -> Job:
    return text_job("hf_causal", gpt2)


def pad_to_longest(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    ids = [sample["input_ids"][sample["attention_mask"].bool()] for sample in samples]
    padded = pad_sequence(ids, batch_first=True)
    mask = pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    return {"input_ids": padded, "attention_mask": mask, "labels": padded.masked_fill(mask == 0, -100)}


@LANGUAGE.entry(
    "the same, padded to the longest of each batch", weight=count_shifted, way_out="hf_causal, padded to one length"
)
def hf_causal_longest() -> Job:
    return text_job("hf_causal_longest", gpt2, collate=pad_to_longest)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, use_cache=False,
    )  # fmt: skip
    return in_full_width(LlamaForCausalLM(config))


@LANGUAGE.entry("Llama of Hugging Face, all texts of one length and all labels counted")
def hf_llama() -> Job:
    return text_job("hf_llama", llama, dataset=WholeTexts)


class WholeTexts(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0, use_cache=False,
        )
    )  # fmt: skip


# Its loss is fp32 whatever its weights are.
@LANGUAGE.entry("an encoder and a decoder; labels of padding are -100", weight=count_labels, tolerance=1e-6)
def hf_t5() -> Job:
    return text_job("hf_t5", t5)


@functools.cache
def checkpoint_folder() -> str:
    """A saved checkpoint, as one has it on disk."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = BertForSequenceClassification(config)
    # For as long as the process lives, and those that are forked from it.
    folder = tempfile.TemporaryDirectory(prefix="field-checkpoint-")
    _FOLDERS.append(folder)
    model.save_pretrained(Path(folder.name))
    return folder.name


_FOLDERS: list[Any] = []


class Sentences(Texts):
    """Texts with one label each."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**super().__getitem__(index), "labels": torch.tensor(index % 3)}


def pretrained_bert() -> nn.Module:
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification.from_pretrained(checkpoint_folder())


@LANGUAGE.entry("BERT from a saved checkpoint, which comes in evaluation mode, with dropout", by_microbatch=True)
def hf_from_checkpoint() -> Job:
    return text_job("hf_from_checkpoint", pretrained_bert, dataset=Sentences)


class Named(Sentences):
    """What a data set of the hub holds beside tensors: the text itself, and fields without a value."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "text": f"text number {index}", "token_type_ids": None}


def keep_strings(samples: list[dict[str, Any]]) -> dict[str, Any]:
    tensors = {name: torch.stack([one[name] for one in samples]) for name in ("input_ids", "attention_mask", "labels")}
    return {**tensors, "text": [one["text"] for one in samples], "token_type_ids": None}


class TakesDict(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Any]) -> Tensor:
        return self.model(**{name: value for name, value in batch.items() if name not in ("text", "labels")}).logits


def undropped_bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


@LANGUAGE.entry("a batch with strings and None beside its tensors")
def hf_strings() -> Job:
    return text_job(
        "hf_strings",
        lambda: TakesDict(undropped_bert()),
        loss=lambda logits, batch: functional.cross_entropy(logits, batch["labels"]),
        dataset=Named,
        collate=keep_strings,
    )


class Block(nn.Module):
    def __init__(self, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, 2, c // 2).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    """A small GPT whose blocks may be checkpointed, and whose embedding may be its head."""

    def __init__(self, *, dropout: float = 0.0, tied: bool = False, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.position = nn.Embedding(LENGTH, 16)
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.reentrant = reentrant
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            if self.reentrant is None or not self.training:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x))


class NextWords(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(index))
        return ids[:-1], ids[1:]


def token_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def gpt_job(name: str, **options: Any) -> Job:
    given = {key: options.pop(key) for key in ("dropout", "tied", "reentrant") if key in options}
    return text_job(name, lambda: Gpt(**given), **{"loss": token_loss, "dataset": NextWords, **options})


def undone() -> nn.Module:
    return Gpt(dropout=0.1)


@LANGUAGE.entry("the embedding is the head")
def weight_tying() -> Job:
    return gpt_job("weight_tying", tied=True)


@LANGUAGE.entry("activation checkpointing, non-reentrant")
def checkpointed() -> Job:
    return gpt_job("checkpointed", reentrant=False)


@LANGUAGE.entry("activation checkpointing, non-reentrant, with dropout", by_microbatch=True, recomputed=undone)
def checkpointed_dropout() -> Job:
    return gpt_job("checkpointed_dropout", reentrant=False, dropout=0.1)


@LANGUAGE.entry("activation checkpointing, reentrant, with dropout", by_microbatch=True, recomputed=undone)
def checkpointed_reentrant() -> Job:
    return gpt_job("checkpointed_reentrant", reentrant=True, dropout=0.1)


class ThreeHeads(nn.Module):
    """One head for three places of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Gpt()
        self.head = nn.Linear(WORDS, 4)

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        x = self.body(ids)
        return self.head(x[:, 0]), self.head(x[:, 3]), self.head(x[:, -1])


@LANGUAGE.entry("a head that is called three times")
def head_three_times() -> Job:
    return text_job(
        "head_three_times",
        ThreeHeads,
        loss=lambda output, target: sum(functional.cross_entropy(one, target[:, 0] % 4) for one in output),
        dataset=NextWords,
    )


class Masked(Dataset[Any]):
    """Words to be guessed, in few of the samples."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(2, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        labels = torch.full_like(ids, -100)
        if index % 3 == 0:
            labels[index % LENGTH] = ids[index % LENGTH]
        return ids.masked_fill(labels != -100, 1), labels


def masked_loss(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    total = functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
    return total, (target != -100).sum()


@LANGUAGE.entry(
    "masked words of which a microbatch, or a rank, may have none; the loss is (sum, weight)",
    weight=lambda batch: float((batch[1] != -100).sum()),
)
def masked_words() -> Job:
    return gpt_job("masked_words", loss=masked_loss, dataset=Masked)


class PackedLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 12, 2, batch_first=True)
        self.head = nn.Linear(12, WORDS)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        return self.head(out)


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return words_of(index)


def pad_and_shift(samples: list[Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    ids = pad_sequence(samples, batch_first=True)
    lengths = torch.tensor([len(sample) - 1 for sample in samples])
    return (ids[:, :-1], lengths), ids[:, 1:]


@LANGUAGE.entry(
    "LSTM over packed sequences, padded to the longest of the batch; padding is ignored",
    weight=lambda batch: float((batch[1] != 0).sum()),
)
def packed_lstm() -> Job:
    return text_job(
        "packed_lstm",
        PackedLstm,
        loss=lambda output, target: functional.cross_entropy(output.transpose(1, 2), target, ignore_index=0),
        dataset=Ragged,
        collate=pad_and_shift,
    )


def easy_first(dataset: Any, epoch: int) -> Iterable[int]:
    """The samples that are easy, and with every epoch more of the others."""
    most = min(len(dataset), 16 * (epoch + 1))
    return list(range(most))


@LANGUAGE.entry("easy samples first, by a sampler", wanted="Job.sampler, honoured")
def curriculum() -> Job:
    return gpt_job("curriculum", sampler=easy_first)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal, a matrix at a time; plain momentum for what is no matrix."""

    def __init__(self, parameters: Any, lr: float = 0.02, momentum: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                buffer = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
                buffer.mul_(group["momentum"]).add_(parameter.grad)
                update = _orthogonal(buffer) if buffer.dim() == 2 else buffer
                parameter.add_(update, alpha=-group["lr"])


def _orthogonal(matrix: Tensor) -> Tensor:
    x = matrix / (matrix.norm() + 1e-7)
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    for _ in range(3):
        gram = x @ x.T
        x = 1.5 * x - 0.5 * gram @ x
    return x if wide else x.T


@LANGUAGE.entry("an optimizer that needs whole matrices", own_optimizer=True)
def muon() -> Job:
    return gpt_job("muon", optimizer=Muon)
