"""Files: tensors come back as they were, other objects and other files are refused, and no code is run."""

from __future__ import annotations

import argparse
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from relgraph.interop.checkpoints import read

STATE = {"model/a/kernel:0": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.float64)}


def same(found):
    assert found.keys() == STATE.keys()
    assert all(found[name].dtype == STATE[name].dtype and torch.equal(found[name], STATE[name]) for name in STATE)


class Harmful:
    """Unpickling it writes a file."""

    def __init__(self, where):
        self.where = where

    def __reduce__(self):
        return Path.touch, (self.where,)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt"])
def test_torch(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    torch.save(STATE, path)
    same(read(path))
    same(read(str(path)))


def test_numpy(tmp_path):
    np.savez(tmp_path / "model.npz", **{name: tensor.numpy() for name, tensor in STATE.items()})
    same(read(tmp_path / "model.npz"))


def test_safetensors(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file(STATE, tmp_path / "model.safetensors")
    same(read(tmp_path / "model.safetensors"))
    (tmp_path / "other.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match="path must be a file of safetensors, got "):
        read(tmp_path / "other.safetensors")


def test_without_safetensors(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="needs the package safetensors: pip install safetensors"):
        read(tmp_path / "model.safetensors")


def test_a_part_of_a_file(tmp_path):
    torch.save({"model": STATE, "step": 3}, tmp_path / "last.pt")
    same(read(tmp_path / "last.pt", key="model"))
    with pytest.raises(ValueError, match="maps names to tensors, got dict as 'model'; is it within key='model'?"):
        read(tmp_path / "last.pt")
    with pytest.raises(ValueError, match="key must name a part of the file, got 'state_dict'; it holds 'model', 'ste"):
        read(tmp_path / "last.pt", key="state_dict")
    with pytest.raises(ValueError, match="its part 'step' is a state dict, got int"):
        read(tmp_path / "last.pt", key="step")


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, 2))])
def test_no_code_of_a_file_is_run(tmp_path, save):
    save({"a": Harmful(tmp_path / "written")}, tmp_path / "model.bin")
    with pytest.raises(ValueError, match="holds tensors and plain values only, got "):
        read(tmp_path / "model.bin")
    assert not (tmp_path / "written").exists()


def test_options_of_a_training_run(tmp_path):
    torch.save({"model": STATE, "opt": argparse.Namespace(layers=2)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="holds tensors and plain values only, got "):
        read(tmp_path / "model.pt", key="model")
    with torch.serialization.safe_globals([argparse.Namespace]):
        same(read(tmp_path / "model.pt", key="model"))


def test_no_objects_of_an_array_are_loaded(tmp_path):
    np.savez(tmp_path / "model.npz", a=np.array([Harmful(tmp_path / "written")], dtype=object))
    with pytest.raises(ValueError, match=r"path must be a .npz file of numbers, got .* \(array 'a'\)"):
        read(tmp_path / "model.npz")
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("name", ["model.npz", "model.pt"])
@pytest.mark.parametrize(
    "content",
    [b"", b"no such thing", b"hello world", b"version https://git-lfs.github.com/spec/v1\n", b"PK\x03\x04 broken"],
)
def test_files_that_are_something_else(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="path must be a"):
        read(tmp_path / name)


@pytest.mark.parametrize("header", ["{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 60,)}", "{'descr': ("])
def test_headers_that_lie(tmp_path, header):
    text = header.ljust(117).encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(ValueError, match=r"path must be a .npz file of numbers, got .* \(array 'a'\)"):
        read(tmp_path / "model.npz")


def test_one_array_under_the_name_of_many(tmp_path):
    np.save(tmp_path / "one.npy", np.ones(2))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(ValueError, match="path must be a .npz file"):
        read(tmp_path / "one.npz")


@pytest.mark.parametrize("name", ["model.pkl", "model", "model.npy", "model.index", "model.ckpt.data-00000-of-00001"])
def test_other_suffixes(tmp_path, name):
    with pytest.raises(ValueError, match=r"path must end in one of \.safetensors, \.bin, .*\.npz, got "):
        read(tmp_path / name)
