"""An LSTM language model with packed sequences and truncated backpropagation; sparse embedding gradients if asked."""

import os

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class Model(nn.Module):
    def __init__(self, words=10000, width=512, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, words)

    def forward(self, x, lengths, state=None):
        self.lstm.flatten_parameters()
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        packed, state = self.lstm(packed, state)
        h, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))
        h, _ = self.gru(h)
        return self.out(h), state


def batch(size=32):
    lengths = torch.randint(20, 64, (size,))
    lengths[0] = 64
    rows = [torch.randint(1, 10000, (int(n),)) for n in lengths]
    return pad_sequence(rows, batch_first=True), lengths


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.backends.cudnn.enabled = True
    model = DistributedDataParallel(Model().cuda(), device_ids=[torch.cuda.current_device()])
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    state = None
    for step in range(3):
        x, lengths = batch()
        x = x.cuda()
        if state is not None:
            state = tuple(s.detach() for s in state)
        out, state = model(x, lengths, state)
        loss = nn.functional.cross_entropy(out[:, :-1].transpose(1, 2), x[:, 1:], ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if dist.get_rank() == 0:
            print(f"step {step} perplexity {torch.exp(loss).item():.1f} lr {scheduler.get_last_lr()}", flush=True)
    dist.destroy_process_group()


main()
