"""Labelled images to train on: the handwritten digits that come with Hocket, or files of the reader's own.

Left out: downloading, augmentation, images that do not fit in memory.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.float32]
Labels = NDArray[np.int64]
_Arrays = tuple[NDArray[np.generic], NDArray[np.generic]]

DIGITS = Path(__file__).with_name("digits.csv.gz")
HELD_OUT = 0.2
_SPLIT_SEED = 2025
_MOST_CLASSES = 1000
_EXPECTED = "an .npz, or MNIST's idx files (their folder, or one named like train-images-idx3-ubyte)"
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NPZ_TRAIN = (("x_train", "y_train"), ("images", "labels"), ("x", "y"))


@dataclass(frozen=True)
class Dataset:
    """Images as rows of float32 in [0, 1] with their classes 0..num_classes-1, and those held out from training."""

    name: str
    train_images: Pixels
    train_labels: Labels
    test_images: Pixels
    test_labels: Labels

    @property
    def num_features(self) -> int:
        """Pixels of one image."""
        return int(self.train_images.shape[1])

    @property
    def num_classes(self) -> int:
        """One more than the largest class, in both parts together."""
        return 1 + int(max(self.train_labels.max(), self.test_labels.max()))


def load(path: str | Path | None = None) -> Dataset:
    """Load the digits that come with Hocket, or what lies at `path`.

    `path`: a folder of MNIST's idx files, one of those image files (its labels beside it), each also as .gz; or an .npz
    with x_train and y_train (or images and labels, or x and y). A test set that comes along (t10k-*, x_test) is held
    out; else a fixed random fifth is. Raises FileNotFoundError or ValueError, naming file, what was expected and found.
    """
    if path is None:
        return _split("handwritten digits (UCI, 8x8)", DIGITS, _read_digits())
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected {_EXPECTED}, found nothing")
    if path.suffix == ".npz" and path.is_file():
        return _load_npz(path)
    if path.is_file():
        return _load_idx(path.name, path, None)
    train, test = _find_idx(path, "train-images"), _find_idx(path, "t10k-images")
    if train is None:
        here = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "an empty folder"
        raise FileNotFoundError(f"{path}: expected train-images-idx3-ubyte or train-images-idx3-ubyte.gz, found {here}")
    return _load_idx(path.name or str(path), train, test)


def _read_digits() -> _Arrays:
    with gzip.open(DIGITS, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    return table[:, :-1], table[:, -1]


def _split(name: str, source: Path, arrays: _Arrays) -> Dataset:
    """Hold out a fifth, the same one in every process."""
    _check(source, arrays)
    images, labels = arrays
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    num_test = round(HELD_OUT * len(labels))
    test, train = order[:num_test], order[num_test:]
    return _scaled(name, source, (images[train], labels[train]), (images[test], labels[test]))


def _scaled(name: str, source: Path, train: _Arrays, test: _Arrays) -> Dataset:
    """Flatten every image and divide by the brightest pixel of the training part."""
    if train[0].shape[1:] != test[0].shape[1:]:
        raise _wrong(source, f"test images of shape {train[0].shape[1:]} as in training", f"{test[0].shape[1:]}")
    brightest = float(train[0].max()) or 1.0

    def flat(images: NDArray[np.generic]) -> Pixels:
        return np.ascontiguousarray(images.reshape(len(images), -1), dtype=np.float32) / np.float32(brightest)

    return Dataset(name, flat(train[0]), train[1].astype(np.int64), flat(test[0]), test[1].astype(np.int64))


def _check(source: Path, arrays: _Arrays, at_least: int = 10) -> None:
    """Raise ValueError unless `arrays` are finite numeric images and whole-number classes, one per image."""
    images, labels = arrays
    if images.ndim < 2 or images.dtype.kind not in "uif" or images[0:1].size == 0:
        raise _wrong(source, "images as numbers of shape (count, ...)", f"{images.dtype} {images.shape}")
    if labels.shape != (len(images),) or labels.dtype.kind not in "ui":
        expected = f"one whole-number label for each of {len(images)} images"
        raise _wrong(source, expected, f"{labels.dtype} {labels.shape}")
    if len(images) < at_least:
        raise _wrong(source, f"at least {at_least} images", f"{len(images)}")
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise _wrong(source, "finite pixels", "NaN or infinity")
    if labels.min() < 0 or labels.max() >= _MOST_CLASSES:
        raise _wrong(source, f"labels from 0 to {_MOST_CLASSES - 1}", f"{labels.min()} to {labels.max()}")


def _wrong(source: Path, expected: str, found: str) -> ValueError:
    return ValueError(f"{source}: expected {expected}, found {found}")


def _load_idx(name: str, images: Path, test_images: Path | None) -> Dataset:
    labels = _labels_beside(images)
    train = _read_idx(images), _read_idx(labels)
    if test_images is None:
        return _split(name, images, train)
    test = _read_idx(test_images), _read_idx(_labels_beside(test_images))
    _check(images, train)
    _check(test_images, test, at_least=1)
    return _scaled(name, images.parent, train, test)


def _find_idx(folder: Path, stem: str) -> Path | None:
    """MNIST is spread with either a dash or a dot before idx3, packed or not."""
    names = [f"{stem}{mark}idx3-ubyte{packed}" for mark in "-." for packed in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _labels_beside(images: Path) -> Path:
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    if name == images.name:
        raise _wrong(images, _EXPECTED, "another name")
    bare = name.removesuffix(".gz")
    found = [images.with_name(entry) for entry in (name, bare, f"{bare}.gz") if images.with_name(entry).is_file()]
    if not found:
        raise FileNotFoundError(f"{images.with_name(name)}: expected the labels of {images.name} here, found no file")
    return found[0]


def _read_idx(path: Path) -> NDArray[np.generic]:
    """Read one idx file: two zero bytes, a type, the number of dimensions, each as big-endian uint32, the numbers."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _wrong(path, "a whole gzip file", str(error)) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise _wrong(path, "an idx file, starting with 00 00 08", f"{content[:4].hex(' ') or 'an empty file'}")
    num_dims, dtype = content[3], np.dtype(_IDX_TYPES[content[2]])
    header = 4 + 4 * num_dims
    if len(content) < header:
        raise _wrong(path, f"{header} bytes of header", f"{len(content)} bytes")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    expected = header + dtype.itemsize * int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise _wrong(path, f"{expected} bytes for shape {shape}", f"{len(content)} bytes")
    return np.frombuffer(content, dtype, offset=header).reshape(shape)


def _load_npz(path: Path) -> Dataset:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # NumPy leaks its own on errors
            arrays = {name: np.asarray(archive[name]) for name in archive.files}
    except (BadZipFile, EOFError, OSError, ValueError, AttributeError, TypeError) as error:
        raise _wrong(path, "an .npz of plain number arrays", str(error)) from error
    for images, labels in _NPZ_TRAIN:
        if images in arrays and labels in arrays:
            train = arrays[images], arrays[labels]
            break
    else:
        pairs = " or ".join(" and ".join(pair) for pair in _NPZ_TRAIN)
        raise _wrong(path, f"arrays named {pairs}", ", ".join(arrays) or "no array")
    if "x_test" not in arrays or "y_test" not in arrays:
        return _split(path.name, path, train)
    test = arrays["x_test"], arrays["y_test"]
    _check(path, train)
    _check(path, test, at_least=1)
    return _scaled(path.name, path, train, test)
