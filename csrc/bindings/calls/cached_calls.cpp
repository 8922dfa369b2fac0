// A cached method stands before a Python method, which says what a call takes, gives and refuses. What a call like this
// one has come to before is run at once; all else, and all that is unusual, goes to the Python method as it came.

#include "bindings/calls/cached_calls.h"

#include "bindings/calls/cached_method.h"
#include "bindings/calls/streams.h"
#include "bindings/python/blocking.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <nanobind/stl/shared_ptr.h>
#include <new>
#include <string_view>
#include <structmember.h>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

// The method ----------------------------------------------------------------------------------------------------------

PyTypeObject *array_type = nullptr, *caller_type = nullptr, *method_type = nullptr;

/// False for arguments that are not plain arrays, constants and lists of counts.
bool add_arguments(const CachedMethod &method, Arguments &arguments, Key &key) {
    key.add(word_of(&method));
    Operands &operands = arguments.operands;
    for (std::size_t i = 0; i < method.num_parameters; ++i) {
        PyObject *const value = arguments.values[i];
        if (value == nullptr) return false;
        if (value == method.usual[i]) {
            key.add(word_of(value));
        } else if ((i == method.x_at || i == method.out_at) && !is_constant(value)) {
            if (!add_operand(value, key, i == method.x_at ? operands.x : operands.out)) return false;
            (i == method.x_at ? operands.x_object : operands.out_object) = value;
        } else if (i == method.tag_at || i == method.recv_tag_at) {
            if (!add_tag(value, key, i == method.tag_at ? operands.tag : operands.recv_tag)) return false;
        } else if (is_constant(value)) {
            key.add(word_of(value));
        } else if (arguments.num_lists == max_lists || !add_counts(key, value)) {
            return false;
        } else {
            ++arguments.num_lists;
        }
    }
    key.add(relation_of(operands.x, operands.out));
    return true;
}

/// Whether the arguments still make this key: a list may have changed before the method has read it.
bool is_still(const Key &key, const CachedMethod &method, const Arguments &arguments) {
    Arguments again{.values = arguments.values, .operands = {}};
    Key now;
    return add_arguments(method, again, now) && KeyEqual{}(key.words(), now.words());
}

void remember(CachedMethod &method, CallCache &cache, const Key &key, const Arguments &arguments, nb::handle result,
              Miss &miss) {
    std::vector<nb::object> held{nb::borrow(method.as_object())};
    for (std::size_t i = 0; i < method.num_parameters; ++i) {
        PyObject *const value = arguments.values[i];
        if (Py_TYPE(value) == array_type) {
            held.push_back(nb::borrow(reinterpret_cast<const NumpyArray *>(value)->dtype));
        } else if (is_constant(value)) { // not a tensor, whose words mean the same for all time
            held.push_back(nb::borrow(value));
        }
    }
    auto ready = miss.come_to(arguments.operands, result, std::move(held));
    if (ready) cache.add(key, std::move(ready));
}

/// What `objects` come to when they are given again. Not of a tensor, nor where there is a list or a tag, which may be
/// another number at the same place. Apart from its caller, whose every call would be slower with it inside.
[[gnu::noinline]] void note_repeat(const CachedMethod &method, CallCache &cache, std::span<PyObject *const> objects,
                                   PyObject *names, const Arguments &arguments, Ready &ready) {
    const Operands &operands = arguments.operands;
    const auto fits = [](PyObject *object) {
        return object == nullptr || (Py_TYPE(object) == array_type &&
                                     reinterpret_cast<const NumpyArray *>(object)->num_dims <= SeenArray::max_dims);
    };
    const auto is_default = [&](std::size_t at) {
        return at == CachedMethod::nowhere || arguments.values[at] == method.defaults[at];
    };
    if (arguments.num_lists > 0 || objects.size() > Repeat::max_given || !fits(operands.x_object) ||
        !fits(operands.out_object))
        return;
    if (!is_default(method.tag_at) || !is_default(method.recv_tag_at)) return;
    std::unique_ptr<Repeat> &repeat = cache.repeat_of(method.number);
    if (!repeat) repeat.reset(new (std::nothrow) Repeat);
    if (!repeat) return;
    const auto seen = [](PyObject *object) {
        return object == nullptr ? SeenArray() : SeenArray(*reinterpret_cast<NumpyArray *>(object));
    };
    repeat->method = &method;
    repeat->ready = &ready;
    repeat->num_given = objects.size();
    std::ranges::copy(objects, repeat->given.begin());
    if (repeat->names.ptr() != names) repeat->names = nb::borrow(names);
    repeat->x = seen(operands.x_object);
    repeat->out = seen(operands.out_object);
    repeat->operands = operands;
}

/// Says more where Python has just refused the arguments: it does so before the function has a frame, so that there is
/// no traceback.
void explain_refusal(PyObject *function, std::size_t num_given, PyObject *names) {
    nb::python_error error;
    if (!error.matches(PyExc_TypeError) || error.traceback().is_valid()) return error.restore();
    try {
        const nb::object named = names == nullptr ? nb::object(nb::tuple()) : nb::borrow(names);
        const nb::object text = nb::module_::import_("hocket.runtime")
                                    .attr("refusal_of")(nb::handle(function), error.value(), num_given, named);
        PyErr_SetObject(PyExc_TypeError, text.ptr());
    } catch (...) { set_python_error(std::current_exception()); }
}

/// Calls the Python method.
[[gnu::noinline]] PyObject *call_as_it_came(PyObject *callable, PyObject *const *given, std::size_t num_flagged,
                                            PyObject *names) {
    PyObject *const function = reinterpret_cast<CachedMethod *>(callable)->function;
    PyObject *const result = PyObject_Vectorcall(function, given, num_flagged, names);
    if (result == nullptr) explain_refusal(function, static_cast<std::size_t>(PyVectorcall_NARGS(num_flagged)), names);
    return result;
}

PyObject *call(PyObject *callable, PyObject *const *given, std::size_t num_flagged, PyObject *names) {
    auto &method = *reinterpret_cast<CachedMethod *>(callable);
    const auto num_given = static_cast<std::size_t>(PyVectorcall_NARGS(num_flagged));
    const auto call_function = [&] { return call_as_it_came(callable, given, num_flagged, names); };
    CallCache *const cache = num_given > 0 && current_stream() == nullptr ? cache_of(method, given[0]) : nullptr;
    if (cache == nullptr) return call_function();
    const std::size_t num_named = names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
    const std::span objects(given + 1, num_given - 1 + num_named);
    const Repeat *const last = cache->repeat_of(method.number).get();
    if (last != nullptr && last->is_of(&method, objects, names, array_type)) {
        const Operands operands = last->operands; // another thread may call, or a signal handler, while this one waits
        return run(*last->ready, operands);
    }
    Arguments arguments;
    Key key;
    if (!sort_arguments(method, given + 1, num_given - 1, names, arguments) || !add_arguments(method, arguments, key)) {
        return call_function();
    }
    Ready *const ready = cache->find(key, method.number);
    if (ready == nullptr || ready->running) {
        // Counts may be others each time: those that do not come again would only take the place of what does.
        if (arguments.num_lists > 0 && !cache->was_missed(key)) return call_function();
        return call_python(method, *cache, key, arguments, given, num_given, names);
    }
    if (!ready->fits(arguments.operands)) return call_function();
    if (ready->is_given_again(arguments.operands)) note_repeat(method, *cache, objects, names, arguments, *ready);
    return run(*ready, arguments.operands);
}

// The types -----------------------------------------------------------------------------------------------------------

PyObject *make_caller(PyTypeObject *type, PyObject *, PyObject *) {
    PyObject *const made = type->tp_alloc(type, 0);
    if (made != nullptr) new (&reinterpret_cast<Caller *>(made)->cache) CallCache;
    return made;
}

void destroy_caller(PyObject *object) {
    PyTypeObject *const type = Py_TYPE(object);
    reinterpret_cast<Caller *>(object)->cache.~CallCache();
    type->tp_free(object);
    Py_DECREF(type);
}

PyType_Slot caller_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(make_caller)},
    {Py_tp_dealloc, reinterpret_cast<void *>(destroy_caller)},
    {0, nullptr},
};

PyType_Spec caller_specification = {
    .name = "hocket._core.Caller",
    .basicsize = sizeof(Caller),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = caller_slots,
};

PyObject *owned(nb::object object) { return object.release().ptr(); }

/// CachedMethod(function): of `self` and parameters.
PyObject *make(PyTypeObject *type, PyObject *args, PyObject *) {
    PyObject *const made = type->tp_alloc(type, 0);
    if (made == nullptr) return nullptr;
    nb::object guard = nb::steal(made);
    auto &method = *reinterpret_cast<CachedMethod *>(made);
    try {
        const auto function = nb::borrow(nb::tuple(nb::handle(args))[0]);
        const nb::object code = function.attr("__code__"), names = code.attr("co_varnames");
        const auto num_positional = nb::cast<std::size_t>(code.attr("co_argcount"));
        const std::size_t num_all = num_positional + nb::cast<std::size_t>(code.attr("co_kwonlyargcount"));
        if (num_positional < 1 || num_all - 1 > max_parameters)
            throw nb::value_error("CachedMethod: not such a method");
        const nb::object by_position = function.attr("__defaults__"), by_name = function.attr("__kwdefaults__");
        const std::size_t num_defaults = by_position.is_none() ? 0 : nb::len(by_position);
        method.num_positional = num_positional - 1;
        method.num_parameters = num_all - 1;
        method.x_at = method.out_at = method.tag_at = method.recv_tag_at = CachedMethod::nowhere;
        for (std::size_t i = 0; i < method.num_parameters; ++i) {
            const auto name = nb::borrow<nb::str>(names[i + 1]);
            const std::string_view word = name.c_str();
            if (word == "x" || word == "input" || word == "tensors") method.x_at = i;
            if (word == "out" || word == "output") method.out_at = i;
            if (word == "tag") method.tag_at = i;
            if (word == "recv_tag") method.recv_tag_at = i;
            method.names[i] = owned(name);
            const std::size_t from_end = method.num_positional - i; // of what has a default by position
            if (i < method.num_positional && from_end <= num_defaults)
                method.defaults[i] = owned(by_position[num_defaults - from_end]);
            else if (i >= method.num_positional && !by_name.is_none() &&
                     PyDict_Contains(by_name.ptr(), name.ptr()) == 1)
                method.defaults[i] = owned(by_name[name]);
            const bool is_tag = i == method.tag_at || i == method.recv_tag_at;
            PyObject *const value = method.defaults[i];
            method.usual[i] = value != nullptr && !is_tag && is_constant(value) ? value : nullptr;
        }
        method.function = owned(function);
    } catch (...) {
        set_python_error(std::current_exception());
        return nullptr;
    }
    return guard.release().ptr();
}

void destroy(PyObject *object) {
    auto &method = *reinterpret_cast<CachedMethod *>(object);
    PyTypeObject *const type = Py_TYPE(object);
    for (PyObject *name : method.names) Py_XDECREF(name);
    for (PyObject *value : method.defaults) Py_XDECREF(value);
    Py_XDECREF(method.function);
    Py_XDECREF(method.owner);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *bind(PyObject *method, PyObject *self, PyObject *) {
    return self == nullptr ? Py_NewRef(method) : PyMethod_New(method, self);
}

/// Name, docstring, signature: those of the Python method.
PyObject *attribute(PyObject *object, PyObject *name) {
    auto &method = *reinterpret_cast<CachedMethod *>(object);
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) return Py_NewRef(method.function);
    if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0) return PyObject_GenericGetAttr(object, name);
    return PyObject_GetAttr(method.function, name);
}

/// For help(), which asks past `attribute`.
PyObject *docstring(PyObject *object, void *) {
    return PyObject_GetAttrString(reinterpret_cast<CachedMethod *>(object)->function, "__doc__");
}

PyGetSetDef method_properties[] = {
    {"__doc__", docstring, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CachedMethod, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot method_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(make)},
    {Py_tp_dealloc, reinterpret_cast<void *>(destroy)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void *>(bind)},
    {Py_tp_getattro, reinterpret_cast<void *>(attribute)},
    {Py_tp_getset, method_properties},
    {Py_tp_members, method_members},
    {0, nullptr},
};

PyType_Spec method_specification = {
    .name = "hocket._core.CachedMethod",
    .basicsize = sizeof(CachedMethod),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = method_slots,
};

nb::object make_method(const nb::object &function, vectorcallfunc call) {
    PyObject *const made = PyObject_CallOneArg(reinterpret_cast<PyObject *>(method_type), function.ptr());
    if (made == nullptr) throw nb::python_error();
    reinterpret_cast<CachedMethod *>(made)->vectorcall = call;
    return nb::steal(made);
}

} // namespace

namespace hocket {

bool sort_arguments(const CachedMethod &method, PyObject *const *given, std::size_t num_given, PyObject *names,
                    Arguments &arguments) {
    if (num_given > method.num_positional) return false;
    arguments.values = method.defaults;
    std::copy_n(given, num_given, arguments.values.begin());
    const auto num_named = names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
    for (std::size_t i = 0; i < num_named; ++i) {
        PyObject *const name = PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i));
        std::size_t at = num_given; // what came by position cannot come again
        while (at < method.num_parameters && method.names[at] != name) ++at;
        if (at >= method.num_parameters) return false;
        arguments.values[at] = given[num_given + i];
    }
    return true;
}

bool add_tag(PyObject *value, Key &key, std::int64_t &tag) {
    constexpr Word any_number = 1; // no object's address
    int overflow = 0;
    const long number = PyLong_CheckExact(value) ? PyLong_AsLongAndOverflow(value, &overflow) : -1;
    const bool is_tag = overflow == 0 && number >= 0 && number <= static_cast<long>(Matcher::max_user_tag);
    if (is_tag) tag = number;
    key.add(is_tag ? any_number : word_of(value));
    return is_tag || value == Py_None || PyLong_CheckExact(value);
}

bool add_operand(PyObject *value, Key &key, Memory &memory) {
    if (Py_TYPE(value) == array_type) return add_array(key, *reinterpret_cast<const NumpyArray *>(value), memory);
    nb::dlpack::dltensor tensor;
    return view_plain_tensor(value, tensor) && add_tensor(key, tensor, memory);
}

CallCache *cache_of(CachedMethod &method, PyObject *self) {
    PyTypeObject *const type = Py_TYPE(self);
    if (type != method.owner) {
        if (PyObject_TypeCheck(self, caller_type) == 0) return nullptr;
        Py_INCREF(type);
        Py_XSETREF(method.owner, type);
    }
    return &reinterpret_cast<Caller *>(self)->cache;
}

PyObject *call_python(CachedMethod &method, CallCache &cache, const Key &key, const Arguments &arguments,
                      PyObject *const *given, std::size_t num_given, PyObject *names, const Unwrap &unwrap) {
    Miss miss;
    const std::uint64_t generation = cache.generation();
    PyObject *const result = PyObject_Vectorcall(method.function, given, num_given, names);
    if (result == nullptr || generation != cache.generation()) return result;
    if (arguments.num_lists > 0 && !is_still(key, method, arguments)) return result;
    try {
        remember(method, cache, key, arguments, unwrap ? unwrap(result) : nb::borrow(result), miss);
    } catch (const std::bad_alloc &) { // the next call like it comes here again
    }
    return result;
}

nb::object make_cached_method(const nb::object &function, vectorcallfunc call) {
    static std::size_t num_methods = 0;
    nb::object made = make_method(function, call);
    reinterpret_cast<CachedMethod *>(made.ptr())->number = num_methods++;
    return made;
}

} // namespace hocket

void bind_cached_calls(nb::module_ &module) {
    array_type = find_array_type();
    nb::class_<Launched>(module, "Launched")
        .def(
            "__init__",
            [](Launched *self, std::shared_ptr<const Plan> plan, std::uint64_t schedule, nb::object labels) {
                new (self) Launched{std::move(plan), schedule, std::move(labels)};
            },
            "plan"_a, "schedule"_a, "labels"_a)
        .def_ro("schedule", &Launched::schedule)
        .def_ro("labels", &Launched::labels)
        .def_ro("num_calls", &Launched::num_calls);
    const auto type_of = [](PyType_Spec &specification) {
        PyObject *const type = PyType_FromSpec(&specification);
        if (type == nullptr) throw nb::python_error();
        return reinterpret_cast<PyTypeObject *>(type); // for good
    };
    caller_type = type_of(caller_specification);
    method_type = type_of(method_specification);
    module.attr("Caller") = nb::borrow(reinterpret_cast<PyObject *>(caller_type));
    module.def(
        "cached_method", [](const nb::object &function) { return make_cached_method(function, call); }, "function"_a);
    module.def(
        "explained_method", [](const nb::object &function) { return make_method(function, call_as_it_came); },
        "function"_a, "Puts nothing before a method, but says more of arguments that it does not take.");
    module.def(
        "forget_calls",
        [](nb::handle caller) {
            if (PyObject_TypeCheck(caller.ptr(), caller_type) == 0) throw nb::type_error("forget_calls: not a Caller");
            reinterpret_cast<Caller *>(caller.ptr())->cache.forget();
        },
        "caller"_a, "Forgets all cached calls of this object.");
    module.def(
        "note_made",
        [](const nb::object &array, const nb::object &by, const nb::object &shape, const nb::object &dtype) {
            note_made(array, {by, shape, dtype.is_none() ? nb::object() : dtype});
        },
        "array"_a, "by"_a, "shape"_a, "dtype"_a.none(),
        "Notes that the method under way made this array for its result by by(shape, dtype) or x.by(shape).");
}
