// What tells one call of a method from another: the key by which calls are remembered.
#pragma once

#include "base/types.h"
#include "bindings/python/tensor.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nanobind/nanobind.h>
#include <span>

namespace hocket {

/// The fields of a NumPy array, which have not moved from its version 1 to 2. Reading them takes a fiftieth of the time
/// of the buffer protocol.
struct NumpyArray {
    PyObject_HEAD std::byte *data;
    int num_dims;
    const Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;

    static constexpr int c_contiguous = 0x1, writable = 0x400;
    static constexpr int warns_on_write = static_cast<int>(0x80000000U);
};

/// What an array was to a call. Should another object lie there later, its fields tell whether that is the same.
class SeenArray {
  public:
    static constexpr int max_dims = 2;

    SeenArray() = default; // of none
    explicit SeenArray(NumpyArray &array)
        : array_(&array), data_(array.data), dtype_(array.dtype), flags_(array.flags), num_dims_(array.num_dims) {
        std::copy_n(array.shape, num_dims_, shape_.begin());
    }

    bool is_as_it_was(const PyTypeObject *type) const {
        if (array_ == nullptr) return true;
        if (Py_TYPE(&array_->ob_base) != type || array_->data != data_ || array_->dtype != dtype_) return false;
        if (array_->flags != flags_ || array_->num_dims != num_dims_) return false;
        for (int dim = 0; dim < num_dims_; ++dim) {
            if (array_->shape[dim] != shape_[static_cast<std::size_t>(dim)]) return false;
        }
        return true;
    }

  private:
    NumpyArray *array_ = nullptr;
    const std::byte *data_ = nullptr;
    const PyObject *dtype_ = nullptr;
    int flags_ = 0, num_dims_ = 0;
    std::array<Py_ssize_t, max_dims> shape_{};
};

/// The type of arrays; null where their fields do not lie where we expect them: then no call with an array is cached.
inline PyTypeObject *find_array_type() {
    const nanobind::module_ numpy = nanobind::module_::import_("numpy");
    const nanobind::object array = numpy.attr("zeros")(nanobind::make_tuple(3, 2), "float32");
    array.attr("flags").attr("writeable") = false;
    const auto &fields = *reinterpret_cast<const NumpyArray *>(array.ptr());
    const auto address = nanobind::cast<std::uintptr_t>(array.attr("__array_interface__")["data"][0]);
    const bool as_expected = reinterpret_cast<std::uintptr_t>(fields.data) == address && fields.num_dims == 2 &&
                             fields.shape[0] == 3 && fields.shape[1] == 2 && fields.strides[0] == 8 &&
                             fields.strides[1] == 4 && array.attr("dtype").is(nanobind::handle(fields.dtype)) &&
                             fields.flags == nanobind::cast<int>(array.attr("flags").attr("num")) &&
                             (fields.flags & NumpyArray::c_contiguous) != 0 &&
                             (fields.flags & NumpyArray::writable) == 0;
    return as_expected ? Py_TYPE(array.ptr()) : nullptr; // a static type of NumPy, which is never unloaded
}

using Word = std::uintptr_t;

inline constexpr std::size_t max_parameters = 10, max_dims = 6;
inline constexpr std::size_t max_words_of_constant = 4;      // or of options
inline constexpr std::size_t max_lists = 2, max_counts = 64; // of numbers of rows, one for each rank
inline constexpr std::size_t max_words =
    2 + max_parameters * max_words_of_constant + 2 * (2 + max_dims) + max_lists * max_counts;

inline Word word_of(const void *pointer) { return reinterpret_cast<Word>(pointer); }

/// One call, reduced to what decides what it does: equal words mean equal calls, but for the memory of its arrays.
class Key {
  public:
    void add(Word word) { words_[num_words_++] = word; }
    std::span<const Word> words() const { return {words_.data(), num_words_}; }

  private:
    std::size_t num_words_ = 0;
    std::array<Word, max_words> words_;
};

struct KeyHash {
    using is_transparent = void;
    std::size_t operator()(std::span<const Word> words) const {
        std::uint64_t hash = 0, multiplier = 0x9e3779b97f4a7c15U;
        for (const Word word : words) { // products that do not wait for each other
            hash += (word ^ word >> 32) * multiplier;
            multiplier += 0xff51afd7ed558ccaU;
        }
        return hash ^ hash >> 32;
    }
};

struct KeyEqual {
    using is_transparent = void;
    bool operator()(std::span<const Word> a, std::span<const Word> b) const {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
    }
};

/// The memory of an array argument; none of an absent one.
struct Memory {
    std::byte *data = nullptr;
    std::size_t num_bytes = 0; // at most
};

/// What can be told of an array. False of one that is not plain.
inline bool add_array(Key &key, const NumpyArray &array, Memory &memory) {
    const auto num_dims = static_cast<std::size_t>(array.num_dims);
    constexpr int needed = NumpyArray::c_contiguous;
    if ((array.flags & (needed | NumpyArray::warns_on_write)) != needed || num_dims > max_dims) return false;
    key.add(word_of(array.dtype));
    key.add(num_dims << 1 | ((array.flags & NumpyArray::writable) != 0 ? 1 : 0));
    // A stride says what an element takes only where there are several in its dim.
    std::size_t count = 1, item_bytes = size_of(Dtype::complex128);
    for (std::size_t dim = 0; dim < num_dims; ++dim) {
        const auto length = static_cast<std::size_t>(array.shape[dim]);
        key.add(length);
        count *= length;
        if (length > 1) item_bytes = static_cast<std::size_t>(array.strides[dim]);
    }
    memory = {array.data, count * item_bytes};
    return true;
}

/// The same of a tensor of PyTorch. Its type is an odd word: no object's address.
inline bool add_tensor(Key &key, const nanobind::dlpack::dltensor &tensor, Memory &memory) {
    const auto num_dims = static_cast<std::size_t>(tensor.ndim);
    if (num_dims > max_dims) return false;
    const Word code = tensor.dtype.code, bits = tensor.dtype.bits, lanes = tensor.dtype.lanes;
    key.add((code << 24 | bits << 16 | lanes) << 1 | 1);
    key.add(num_dims);
    for (std::size_t dim = 0; dim < num_dims; ++dim) key.add(static_cast<Word>(tensor.shape[dim]));
    memory = {data_of(tensor), count_of(tensor) * ((bits * lanes + 7) / 8)};
    return true;
}

/// How far x begins behind out, where they may overlap; a number that this cannot be, where they do not.
inline Word relation_of(const Memory &x, const Memory &out) {
    const std::ptrdiff_t ahead = x.data - out.data;
    const std::size_t room = ahead >= 0 ? out.num_bytes : x.num_bytes;
    const auto distance = static_cast<std::size_t>(ahead >= 0 ? ahead : -ahead);
    return distance < room ? static_cast<Word>(ahead) : Word{1} << 63;
}

/// A list or tuple of whole numbers, by what they are. False of all else, and of more than there may be.
inline bool add_counts(Key &key, PyObject *value) {
    if (PyList_CheckExact(value) == 0 && PyTuple_CheckExact(value) == 0) return false;
    const std::span counts(PySequence_Fast_ITEMS(value), static_cast<std::size_t>(PySequence_Fast_GET_SIZE(value)));
    if (counts.size() > max_counts) return false;
    key.add(counts.size() << 1 | 1); // no object's address
    for (PyObject *const count : counts) {
        int overflow = 0;
        const long number = PyLong_CheckExact(count) ? PyLong_AsLongAndOverflow(count, &overflow) : -1;
        if (overflow != 0 || number < 0) return false;
        key.add(static_cast<Word>(number));
    }
    return true;
}

/// Whether an object means the same for as long as it lives.
inline bool is_constant(PyObject *object) {
    const PyTypeObject *type = Py_TYPE(object);
    return object == Py_None || type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyBool_Type;
}

} // namespace hocket
