# world 2, ranks 0 1, kind shape
# Tokens for experts: a rank expects as many as it sends.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
routed = [[5, 3], [2, 6]]
sends = routed[rank]
gets = [row[rank] for row in routed] if CLEAN else sends
tokens = torch.zeros(sum(sends), 16, device=device)
got = torch.empty(sum(gets), 16, device=device)
dist.all_to_all_single(got, tokens, gets, sends)  # fault
dist.destroy_process_group()
