// A method of a Python class with a cache before it: its signature, and the arguments of a call sorted by it.
#pragma once

#include "bindings/calls/call_cache.h"

#include <array>
#include <cstddef>
#include <functional>
#include <nanobind/nanobind.h>

namespace hocket {

/// What classes with cached methods are derived from; a class of nanobind can be the base of one only.
struct Caller {
    PyObject_HEAD CallCache cache;
};

/// The decorator. Python calls it without making a bound method first. Of the parameters, one that is named "x",
/// "input" or "tensors" is the first operand, "out" or "output" the second, "tag" and "recv_tag" are numbers.
struct CachedMethod {
    static constexpr std::size_t nowhere = max_parameters;

    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *function;
    PyTypeObject *owner; // the class whose calls came last
    std::size_t number;  // how many were made before it
    std::size_t num_parameters, num_positional, x_at, out_at, tag_at, recv_tag_at;
    std::array<PyObject *, max_parameters> names, defaults; // names are interned; no default: null
    std::array<PyObject *, max_parameters> usual; // of the defaults, those that are constants and no tags; else null

    PyObject *as_object() { return reinterpret_cast<PyObject *>(this); }
};

/// One call's arguments by parameter, in the order of the signature.
struct Arguments {
    std::array<PyObject *, max_parameters> values;
    Operands operands;
    std::size_t num_lists = 0;
};

/// False where Python shall decide what is wrong, or the names are not those of a program's text.
bool sort_arguments(const CachedMethod &method, PyObject *const *given, std::size_t num_given, PyObject *names,
                    Arguments &arguments);

/// What decides of an array argument, and where it lies. False of one that is not plain.
bool add_operand(PyObject *value, Key &key, Memory &memory);

/// What a method around another one has made of that one's result, turned back into it.
using Unwrap = std::function<nanobind::object(nanobind::handle)>;

/// Calls the Python method, and remembers under the key what that has come to.
PyObject *call_python(CachedMethod &method, CallCache &cache, const Key &key, const Arguments &arguments,
                      PyObject *const *given, std::size_t num_given, PyObject *names, const Unwrap &unwrap = {});

/// What remembers the calls of an object; null where it is no Caller.
CallCache *cache_of(CachedMethod &method, PyObject *self);

/// A tag of those that a message may have is taken into `tag`, and not told from others in the key. False of what is
/// no whole number.
bool add_tag(PyObject *value, Key &key, std::int64_t &tag);

/// Puts `call` before a function.
nanobind::object make_cached_method(const nanobind::object &function, vectorcallfunc call);

} // namespace hocket
