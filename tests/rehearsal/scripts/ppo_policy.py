"""Proximal policy optimization with environments on the host in numpy, actions sampled on the device."""

import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Categorical, Normal


class Poles:
    def __init__(self, count, seed):
        self.random = np.random.default_rng(seed)
        self.state = self.random.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)

    def step(self, action):
        x, v, a, w = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        acceleration = (9.8 * np.sin(a) - np.cos(a) * force / 1.1) / 0.7
        self.state = np.stack([x + 0.02 * v, v + 0.02 * force, a + 0.02 * w, w + 0.02 * acceleration], 1).astype(
            np.float32
        )
        done = (np.abs(self.state[:, 2]) > 0.2) | (np.abs(self.state[:, 0]) > 2.4)
        self.state[done] = self.random.uniform(-0.05, 0.05, (int(done.sum()), 4))
        return self.state, np.ones(len(done), np.float32), done


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        mlp = lambda n: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n))
        self.actor, self.critic = mlp(2), mlp(1)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.orthogonal_(m.weight, np.sqrt(2))
                nn.init.constant_(m.bias, 0.0)

    def act(self, x, action=None):
        policy = Categorical(logits=self.actor(x))
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.critic(x).squeeze(-1)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    rank, world = dist.get_rank(), dist.get_world_size()
    envs = Poles(8, rank)
    agent = Agent().to(device)
    for p in agent.parameters():
        dist.broadcast(p.data, 0)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    steps, count = 16, 8
    seen = torch.tensor(envs.state, device=device)
    for update in range(2):
        states = torch.zeros(steps, count, 4, device=device)
        actions = torch.zeros(steps, count, device=device)
        logs, rewards, dones, values = (torch.zeros(steps, count, device=device) for _ in range(4))
        for t in range(steps):
            states[t] = seen
            with torch.no_grad():
                action, log, _, value = agent.act(seen)
            actions[t], logs[t], values[t] = action, log, value
            state, reward, done = envs.step(action.cpu().numpy())
            rewards[t] = torch.as_tensor(reward).to(device)
            dones[t] = torch.Tensor(done).to(device)
            seen = torch.Tensor(state).to(device)
        advantages, last = torch.zeros_like(rewards), 0
        for t in reversed(range(steps)):
            following = agent.act(seen)[3].detach() if t == steps - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * following * (1 - dones[t]) - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * (1 - dones[t]) * last
        returns = advantages + values
        index = np.arange(steps * count)
        for _ in range(2):
            np.random.shuffle(index)
            for start in range(0, len(index), 64):
                part = index[start : start + 64]
                _, new, entropy, value = agent.act(states.reshape(-1, 4)[part], actions.long().reshape(-1)[part])
                ratio = (new - logs.reshape(-1)[part]).exp()
                a = advantages.reshape(-1)[part]
                a = (a - a.mean()) / (a.std() + 1e-8)
                loss = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
                loss = loss + 0.5 * ((value - returns.reshape(-1)[part]) ** 2).mean() - 0.01 * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                flat = torch.cat([p.grad.view(-1) for p in agent.parameters()])
                dist.all_reduce(flat, op=dist.ReduceOp.SUM)
                offset = 0
                for p in agent.parameters():
                    p.grad.data.copy_(flat[offset : offset + p.numel()].view_as(p.grad.data) / world)
                    offset += p.numel()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        predicted, true = values.reshape(-1).cpu().numpy(), returns.reshape(-1).cpu().numpy()
        explained = np.nan if np.var(true) == 0 else 1 - np.var(true - predicted) / np.var(true)
        if rank == 0:
            noise = Normal(torch.zeros(2, device=device), 1.0).rsample()
            print(f"update {update} loss {loss.item():.3f} explained {explained:.3f} {tuple(noise.shape)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
