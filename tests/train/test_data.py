"""Data for training: the order of samples, files of Fashion-MNIST, the synthetic set."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import itertools
import struct
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.train import data
from weft.train.data import Batches, ImageData, download, read_idx, sample_order, synthetic_images


@given(length=st.integers(0, 3000), seed=st.integers(-5, 2**70), epoch=st.integers(0, 2**40))
def test_an_epoch_has_each_sample_once(length: int, seed: int, epoch: int) -> None:
    order = sample_order(length, seed, epoch)
    assert torch.equal(order.sort().values, torch.arange(length))


@given(data=st.data(), length=st.integers(1, 500))
def test_the_sample_at_a_position_does_not_depend_on_what_was_asked_before(data: Any, length: int) -> None:
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    assert torch.equal(sample_order(length, 1, 2, start, stop), sample_order(length, 1, 2)[start:stop])


def test_the_order_is_the_same_everywhere_and_differs_by_seed_and_epoch() -> None:
    assert sample_order(10, 0, 0).tolist() == [0, 1, 2, 9, 8, 3, 4, 7, 6, 5]
    orders = {tuple(sample_order(10, seed, epoch).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_positions_look_independent_of_samples() -> None:
    orders = torch.stack([sample_order(100, 0, epoch) for epoch in range(400)]).double()
    assert (orders.mean(0) - 49.5).abs().max() < 6  # a standard deviation is 28.9 / 20 = 1.44
    moved = orders[:, 1:] - orders[:, :-1]
    assert abs(float((moved == 1).double().mean()) - 0.01) < 0.003


def numbers(count: int) -> ImageData:
    images = torch.arange(count, dtype=torch.uint8)[:, None, None].expand(count, 28, 28)
    return ImageData(images, torch.arange(count, dtype=torch.uint8), "numbers")


def test_a_loop_is_an_epoch_and_the_next_one_has_another_order() -> None:
    batches = Batches(numbers(10), 4)
    epochs = [[y.tolist() for _, y in batches] for _ in range(2)]
    assert [list(map(len, epoch)) for epoch in epochs] == [[4, 4, 2], [4, 4, 2]]
    assert len(batches) == 3
    assert all(sorted(itertools.chain(*epoch)) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_what_is_saved_in_the_middle_of_an_epoch_goes_on_there() -> None:
    straight = [y.tolist() for batches in [Batches(numbers(10), 4)] for _ in range(2) for _, y in batches]
    for stopped in range(7):
        batches, seen = Batches(numbers(10), 4), []
        for _ in range(2):
            for _, y in batches:
                if len(seen) == stopped:
                    break
                seen.append(y.tolist())
                state = batches.state_dict()
        resumed = Batches(numbers(10), 4, seed=9)
        if stopped:
            resumed.load_state_dict(state)
            while resumed.epoch < 2:
                seen += [y.tolist() for _, y in resumed]
            assert seen[:stopped] + seen[stopped:] == straight


def test_test_data_comes_in_its_own_order() -> None:
    (x, y), *_ = Batches(numbers(3), 2, shuffle=False)
    assert y.tolist() == [0, 1]
    assert x.shape == (2, 1, 28, 28)
    assert x[1].unique().item() == pytest.approx(1 / 255)


def idx(tensor: torch.Tensor) -> bytes:
    sizes = struct.pack(f">{tensor.ndim}I", *tensor.shape)
    return bytes([0, 0, 8, tensor.ndim]) + sizes + tensor.numpy().tobytes()


def test_idx_files_are_read_packed_or_not(tmp_path: Path) -> None:
    expected = torch.randint(256, (3, 4, 2), dtype=torch.uint8)
    (tmp_path / "a").write_bytes(idx(expected))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(expected)))
    assert torch.equal(read_idx(tmp_path / "a"), expected)
    assert torch.equal(read_idx(tmp_path / "a.gz"), expected)


@pytest.mark.parametrize("content", [b"", b"\0\0\x07\1", b"\0\0\x08\2\0\0", idx(torch.ones(4).byte())[:-1]])
def test_damaged_idx_files_are_refused(content: bytes, tmp_path: Path) -> None:
    for name, data_of_file in [("a", content), ("b.gz", gzip.compress(content)), ("c.gz", content)]:
        (tmp_path / name).write_bytes(data_of_file)
        with pytest.raises(weft.ExecutionError, match=name):
            read_idx(tmp_path / name)


class Response(io.BytesIO):
    headers = http.client.HTTPMessage()


def test_fashion_mnist_is_downloaded_once_and_checked(tmp_path: Path, monkeypatch: Any) -> None:
    files = {}
    for name in data.FILES:
        shape = (5, 28, 28) if "images" in name else (5,)
        files[name] = gzip.compress(idx(torch.randint(10, shape, dtype=torch.uint8)))
    digests = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in files.items()}
    asked = []

    def answer(address: str, timeout: float) -> Response:
        asked.append(address)
        return Response(files[address.rpartition("/")[2]])

    monkeypatch.setattr(data, "FILES", digests)
    monkeypatch.setattr(urllib.request, "urlopen", answer)
    for _ in range(2):
        train, test = weft.data.load_fashion_mnist(2, folder=tmp_path)
        assert len(train) == len(test) == 3
    assert len(asked) == 4
    files[next(iter(files))] += b"more"
    (tmp_path / next(iter(files))).write_bytes(b"damaged")
    with pytest.raises(weft.ExecutionError, match="another checksum"):
        weft.data.fashion_mnist(tmp_path)


def test_without_a_network_the_way_out_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    def offline(address: str, timeout: float) -> Response:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(weft.ExecutionError, match=r"(?s)could not be downloaded.*no route.*synthetic=True"):
        download("https://example.org/a", tmp_path / "a", "")


def test_synthetic_data_is_labelled_and_the_same_for_everybody(monkeypatch: Any, capsys: Any) -> None:
    small = data.synthetic_fashion_mnist(30, 20)
    monkeypatch.setattr(data, "synthetic_fashion_mnist", lambda: small)
    train, _test = weft.data.load_fashion_mnist(10, synthetic=True)
    assert "SYNTHETIC" in capsys.readouterr().err
    assert train.data.images.shape == (30, 28, 28)
    images, labels = synthetic_images(30, seed=1)
    assert torch.equal(images, train.data.images)
    assert labels.max() == 9
    assert len(synthetic_images(0, 0)[1]) == 0
