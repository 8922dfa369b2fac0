// A cached method of a process group stands before a Python method that makes one call of the group's communicator.
// Where it waited for that call, or only began a message, the next one like it is run at once; all else goes to the
// Python method as it came.

#include "bindings/calls/group_calls.h"

#include "bindings/calls/cached_method.h"
#include "bindings/calls/streams.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

/// What a process group has for its cached methods, as its attribute `_calls`.
struct GroupCalls {
    nb::object communicator;        // a Caller, whose cache it is
    nb::object finished;            // PyTorch's work of a call that is over when it returns
    nb::object wrap;                // makes PyTorch's work of one of the communicator and of the message's tensor
    nb::object raise;               // raises in PyTorch's words what a call has raised
    bool paused = false;            // calls are launched together
    std::uint64_t num_repeated = 0; // calls that did not come to Python
};

/// Options of PyTorch's collectives, objects of pybind11: what they say is read in memory, as it takes a microsecond
/// to ask for it. Where it lies was tried out for each type.
struct OptionsType {
    using Field = std::pair<std::size_t, std::size_t>; // where, and how many bytes

    PyTypeObject *type;
    Field async_op;
    std::vector<Field> fields; // the others

    static const std::byte *memory_of(PyObject *options) {
        struct Instance {
            PyObject_HEAD const std::byte *memory;
        };
        return reinterpret_cast<const Instance *>(options)->memory;
    }
    static Word read(const std::byte *memory, const Field &field) {
        Word word = 0;
        std::memcpy(&word, memory + field.first, field.second);
        return word;
    }
};

// The interpreter lock guards these.
std::vector<OptionsType> options_types;
PyObject *calls_name = nullptr, *profiling_name = nullptr, *repeatable_name = nullptr;
PyObject *profiler = nullptr;          // the dict of PyTorch's module
PyObject *increment_version = nullptr; // PyTorch's function

/// False of options that are unknown, and of those for an asynchronous call.
bool add_options(PyObject *value, Key &key) {
    for (const OptionsType &one : options_types) {
        if (one.type != Py_TYPE(value)) continue;
        const std::byte *const memory = OptionsType::memory_of(value);
        if (OptionsType::read(memory, one.async_op) != 0) return false;
        key.add(word_of(one.type));
        for (const auto &field : one.fields) key.add(OptionsType::read(memory, field));
        return true;
    }
    return false;
}

/// False for arguments that are not plain tensors, constants and options of a call that is waited for. A tensor may be
/// the only one in a list. What a premul_sum multiplies by is not in the key, but such a call is never remembered.
bool add_arguments(const CachedMethod &method, Arguments &arguments, Key &key) {
    key.add(word_of(&method));
    Operands &operands = arguments.operands;
    for (std::size_t i = 0; i < method.num_parameters; ++i) {
        PyObject *value = arguments.values[i];
        if (value == nullptr) return false;
        const bool is_list = PyList_CheckExact(value) != 0;
        if (i == method.x_at || i == method.out_at) {
            if (is_list && PyList_GET_SIZE(value) == 1) value = PyList_GET_ITEM(value, 0);
            nb::dlpack::dltensor tensor;
            Memory &memory = i == method.x_at ? operands.x : operands.out;
            if (!view_plain_tensor(value, tensor) || !add_tensor(key, tensor, memory)) return false;
            (i == method.x_at ? operands.x_object : operands.out_object) = value;
        } else if (is_list && PyList_GET_SIZE(value) == 0) {
            key.add(word_of(&PyList_Type));
        } else if (i == method.tag_at) {
            if (!add_tag(value, key, operands.tag)) return false;
        } else if (is_constant(value)) {
            key.add(word_of(value));
        } else if (!add_options(value, key)) {
            return false;
        }
    }
    key.add(relation_of(operands.x, operands.out));
    return true;
}

/// Null where every call has to go through Python.
GroupCalls *calls_of(PyObject *group) {
    if (profiler == nullptr || PyDict_GetItemWithError(profiler, profiling_name) != Py_False) return nullptr;
    if (current_stream() != nullptr) return nullptr;
    const auto found = nb::steal(PyObject_GetAttr(group, calls_name)); // the group keeps it
    GroupCalls *calls = nullptr;
    if (!found.is_valid()) PyErr_Clear();
    else if (nb::try_cast(found, calls, false) && calls->paused) calls = nullptr;
    return calls;
}

/// As the Python method does before it makes the call.
bool count_versions(const Ready &ready, const Operands &operands) {
    for (const Place place : {Place::x, Place::out}) {
        if (!ready.writes(place)) continue;
        const auto written = nb::steal(PyList_New(1));
        if (!written.is_valid()) return false;
        PyList_SET_ITEM(written.ptr(), 0, Py_NewRef(operands.object_at(place)));
        if (!nb::steal(PyObject_CallOneArg(increment_version, written.ptr())).is_valid()) return false;
    }
    return true;
}

/// What a Python method got from the communicator and wrapped: None of a call that is over, the work of a message. A
/// result that stands for more, such as a copy still to be made, is returned as it is, and the call is not remembered.
nb::object unwrap(const nb::object &finished, nb::handle result) {
    if (result.is(finished)) return nb::none();
    const nb::object repeatable = nb::getattr(result, repeatable_name, nb::none());
    return repeatable.is_none() ? nb::borrow(result) : repeatable;
}

PyObject *run_again(GroupCalls &calls, Ready &ready, const Operands &operands) {
    // A signal handler may let go of the group.
    const nb::object finished = calls.finished, wrap = calls.wrap, raise = calls.raise;
    const nb::object x = nb::borrow(operands.x_object), out = nb::borrow(operands.out_object); // lists may change
    ++calls.num_repeated;
    const auto result = nb::steal(run(ready, operands, count_versions));
    if (result.is_valid() && work_of(result.ptr()) == nullptr) return Py_NewRef(finished.ptr());
    if (result.is_valid()) {
        const std::array given{result.ptr(), x.ptr()};
        return PyObject_Vectorcall(wrap.ptr(), given.data(), given.size(), nullptr);
    }
    const nb::python_error error;
    return PyObject_CallOneArg(raise.ptr(), error.value().ptr());
}

PyObject *call(PyObject *callable, PyObject *const *given, std::size_t num_flagged, PyObject *names) {
    auto &method = *reinterpret_cast<CachedMethod *>(callable);
    const auto num_given = static_cast<std::size_t>(PyVectorcall_NARGS(num_flagged));
    GroupCalls *const calls = num_given > 0 ? calls_of(given[0]) : nullptr;
    CallCache *const cache = calls != nullptr ? cache_of(method, calls->communicator.ptr()) : nullptr;
    Arguments arguments;
    Key key;
    if (cache == nullptr || !sort_arguments(method, given + 1, num_given - 1, names, arguments) ||
        !add_arguments(method, arguments, key)) {
        return PyObject_Vectorcall(method.function, given, num_flagged, names);
    }
    Ready *const ready = cache->find(key, method.number);
    if (ready == nullptr || ready->running) {
        return call_python(method, *cache, key, arguments, given, num_given, names,
                           [finished = calls->finished](nb::handle result) { return unwrap(finished, result); });
    }
    if (!ready->fits(arguments.operands)) return PyObject_Vectorcall(method.function, given, num_flagged, names);
    return run_again(*calls, *ready, arguments.operands);
}

} // namespace

void bind_group_calls(nb::module_ &module) {
    calls_name = PyUnicode_InternFromString("_calls"); // for good
    profiling_name = PyUnicode_InternFromString("_is_profiler_enabled");
    repeatable_name = PyUnicode_InternFromString("repeatable");
    nb::class_<GroupCalls>(module, "GroupCalls")
        .def(
            "__init__",
            [](GroupCalls *self, nb::object communicator, nb::object finished, nb::object wrap, nb::object raise) {
                if (profiler == nullptr) {
                    const nb::object module = nb::module_::import_("torch.autograd.profiler");
                    increment_version = nb::module_::import_("torch._C").attr("_increment_version").inc_ref().ptr();
                    profiler = module.attr("__dict__").inc_ref().ptr(); // for good
                }
                new (self) GroupCalls{std::move(communicator), std::move(finished), std::move(wrap), std::move(raise)};
            },
            "communicator"_a, "finished"_a, "wrap"_a, "raise_"_a)
        .def_rw("paused", &GroupCalls::paused)
        .def_ro("num_repeated", &GroupCalls::num_repeated);
    module.def(
        "cached_group_method", [](const nb::object &function) { return make_cached_method(function, call); },
        "function"_a);
    module.def(
        "read_options",
        [](nb::type_object type, OptionsType::Field async_op, std::vector<OptionsType::Field> fields) {
            if (fields.size() >= max_words_of_constant) throw nb::value_error("read_options: too many fields");
            options_types.push_back(
                {reinterpret_cast<PyTypeObject *>(type.release().ptr()), async_op, std::move(fields)}); // for good
        },
        "type"_a, "async_op"_a, "fields"_a);
    module.def(
        "note_written", [](nb::handle tensor) { note_written(tensor.ptr()); }, "tensor"_a,
        "Notes that this tensor is the result of the cached method under way on this thread.");
}
