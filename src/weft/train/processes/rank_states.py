"""The random number generators of every process <-> texts that a checkpoint of rank 0 holds."""

from __future__ import annotations

import json

import torch

from weft.train.checkpoints.random_states import random_states, set_random_states
from weft.train.checkpoints.values import decode, encode
from weft.train.processes.peers import Peers


def states_of_all(peers: Peers) -> list[str]:
    """Give the states of every rank, on every rank."""
    tensors: dict[str, torch.Tensor] = {}
    data = encode(random_states(), "random", tensors)
    lists = {name: [str(tensor.dtype).removeprefix("torch."), tensor.tolist()] for name, tensor in tensors.items()}
    return [text.decode() for text in peers.gather(json.dumps([data, lists]).encode())]


def take_state(peers: Peers, texts: list[str]) -> None:
    """Put the generators of this rank into its state; of another number of ranks, each gets a seed of its own."""
    if len(texts) != peers.world:
        if peers.rank:
            torch.manual_seed(torch.initial_seed() + peers.rank)
        return
    data, lists = json.loads(texts[peers.rank])
    tensors = {name: torch.tensor(values, dtype=getattr(torch, dtype)) for name, (dtype, values) in lists.items()}
    set_random_states(decode(data, tensors))
