"""The built-in digits, MNIST's idx files, .npz files; and every error that such a file can have."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from hocket.training.datasets import DIGITS, load


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def images_and_labels(count: int = 50) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, 256, (count, 5, 4), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10


def write_mnist(folder: Path, *, packed: bool = False, mark: str = "-", test: bool = True) -> None:
    for part, count in (("train", 50), ("t10k", 20))[: 1 + test]:
        images, labels = images_and_labels(count)
        for name, array in ((f"images{mark}idx3", images), (f"labels{mark}idx1", labels)):
            content = gzip.compress(idx(array)) if packed else idx(array)
            (folder / f"{part}-{name}-ubyte{'.gz' * packed}").write_bytes(content)


def test_digits_are_the_file_that_credits_names() -> None:
    credits = DIGITS.with_name("CREDITS.md").read_text()
    assert hashlib.sha256(DIGITS.read_bytes()).hexdigest() in credits
    assert "CC BY 4.0" in credits and "Alpaydin" in credits and "Kaynak" in credits


def test_digits_hold_out_a_fifth() -> None:
    dataset = load()
    assert dataset.train_images.shape == (1438, 64) and dataset.test_images.shape == (359, 64)
    assert dataset.num_features == 64 and dataset.num_classes == 10
    assert dataset.train_images.dtype == np.float32 and dataset.train_images.max() == 1.0
    assert set(dataset.test_labels) == set(range(10))


def test_held_out_images_are_not_trained_on() -> None:
    dataset = load()
    together = np.concatenate([dataset.train_images, dataset.test_images])
    assert len(np.unique(together, axis=0)) == 1797  # no two images are alike, so disjoint rows are disjoint images


def test_every_process_holds_out_the_same() -> None:
    assert np.array_equal(load().test_images, load().test_images)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", ["-", "."])
def test_folder_of_mnist_files(tmp_path: Path, packed: bool, mark: str) -> None:
    write_mnist(tmp_path, packed=packed, mark=mark)
    dataset = load(tmp_path)
    assert dataset.name == tmp_path.name
    assert dataset.train_images.shape == (50, 20) and dataset.test_images.shape == (20, 20)
    images, labels = images_and_labels()
    np.testing.assert_array_equal(dataset.train_images, images.reshape(50, 20) / np.float32(images.max()))
    np.testing.assert_array_equal(dataset.train_labels, labels)


def test_one_mnist_file_finds_its_labels_and_holds_out_a_fifth(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    dataset = load(tmp_path / "train-images-idx3-ubyte")
    assert dataset.train_images.shape == (40, 20) and dataset.test_images.shape == (10, 20)


def test_labels_may_be_packed_where_images_are_not(tmp_path: Path) -> None:
    write_mnist(tmp_path, test=False)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.with_name(labels.name + ".gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    assert len(load(tmp_path).train_labels) == 40


@pytest.mark.parametrize("names", [("x_train", "y_train"), ("images", "labels"), ("x", "y")])
def test_npz(tmp_path: Path, names: tuple[str, str]) -> None:
    images, labels = images_and_labels()
    np.savez(tmp_path / "own.npz", **{names[0]: images, names[1]: labels})
    assert load(tmp_path / "own.npz").train_images.shape == (40, 20)


def test_npz_with_its_own_test_set(tmp_path: Path) -> None:
    images, labels = images_and_labels()
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels, x_test=images[:7], y_test=labels[:7])
    dataset = load(tmp_path / "own.npz")
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (50, 7)


IMAGES, LABELS = images_and_labels()
BAD_IDX = {
    "cut short": (idx(IMAGES)[:-1], "expected 1016 bytes for shape (50, 5, 4), found 1015 bytes"),
    "bytes too many": (idx(IMAGES) + b"x", "expected 1016 bytes for shape (50, 5, 4), found 1017 bytes"),
    "something else": (b"\x89PNG....", "expected an idx file, starting with 00 00 08, found 89 50 4e 47"),
    "empty": (b"", "expected an idx file, starting with 00 00 08, found an empty file"),
    "no shape": (b"\0\0\x08\x03", "expected 16 bytes of header, found 4 bytes"),
    "a shape beyond all memory": (b"\0\0\x08\x03" + b"\xff" * 12, "expected 79228162458924105385300197391 bytes"),
    "labels as images": (idx(LABELS), "expected images as numbers of shape (count, ...), found uint8 (50,)"),
    "fewer than the labels": (idx(IMAGES[:40]), "expected one whole-number label for each of 40 images, found uint8"),
    "images without pixels": (idx(IMAGES[:, :0]), "expected images as numbers of shape (count, ...)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_IDX)
def test_bad_idx_file(tmp_path: Path, case: str) -> None:
    content, message = BAD_IDX[case]
    write_mnist(tmp_path, test=False)
    bad = tmp_path / "train-images-idx3-ubyte"
    bad.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        load(tmp_path)
    assert str(bad) in str(caught.value) and message in str(caught.value)


def test_broken_gzip(tmp_path: Path) -> None:
    write_mnist(tmp_path, packed=True, test=False)
    bad = tmp_path / "train-images-idx3-ubyte.gz"
    for content in (bad.read_bytes()[:-20], b"not packed", bad.read_bytes()[:40] + b"\xff" * 60):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match="expected a whole gzip file"):
            load(tmp_path)


BAD_NPZ = {
    "other names": ({"a": IMAGES}, "expected arrays named x_train and y_train or images and labels or x and y"),
    "labels are fractions": ({"x": IMAGES, "y": LABELS + 0.5}, "found float64 (50,)"),
    "labels below zero": ({"x": IMAGES, "y": LABELS.astype(int) - 1}, "expected labels from 0 to 999, found -1 to 8"),
    "labels too large": ({"x": IMAGES, "y": LABELS.astype(int) * 1000}, "labels from 0 to 999, found 0 to 9000"),
    "text": ({"x": IMAGES.astype(str), "y": LABELS}, "expected images as numbers"),
    "objects": ({"x": IMAGES.astype(object), "y": LABELS}, "expected an .npz of plain number arrays"),
    "not a number": ({"x": IMAGES * np.nan, "y": LABELS}, "expected finite pixels, found NaN or infinity"),
    "too few": ({"x": IMAGES[:5], "y": LABELS[:5]}, "expected at least 10 images, found 5"),
    "other test shape": ({"x": IMAGES, "y": LABELS, "x_test": IMAGES[:, :3], "y_test": LABELS}, "(5, 4) as in"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz(tmp_path: Path, case: str) -> None:
    arrays, message = BAD_NPZ[case]
    bad = tmp_path / "bad.npz"
    np.savez(bad, **arrays)
    with pytest.raises(ValueError) as caught:
        load(bad)
    assert str(caught.value).startswith(f"{bad}: expected ") and message in str(caught.value)


def test_npz_that_is_none(tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    for content in (b"", b"not an archive", b"PK\3\4 cut"):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"expected an \.npz of plain number arrays"):
            load(bad)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected train-images-idx3-ubyte or .* found an empty folder"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"found notes\.txt"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none\.npz: expected an \.npz, or .* found nothing"):
        load(tmp_path / "none.npz")
    with pytest.raises(ValueError, match=r"notes\.txt: expected an \.npz, or .* found another name"):
        load(tmp_path / "notes.txt")
    write_mnist(tmp_path, test=False)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="train-labels-idx1-ubyte: expected the labels of train-images"):
        load(tmp_path)
