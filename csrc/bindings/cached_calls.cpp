// A cached method stands before a Python method, which says what a call takes, gives and refuses. What a call like this
// one has come to before is run at once; all else, and all that is unusual, goes to the Python method as it came.

#include "cached_calls.h"

#include "arrays.h"
#include "blocking.h"
#include "call_key.h"

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

// What is remembered --------------------------------------------------------------------------------------------------

enum class Place { none, x, out, fixed };

/// A call that was made before, ready to be made again with other memory. One thread at a time may run it.
struct Ready {
    Call call;
    Communicator &communicator;
    Launched &launched;
    Place input, output, result;
    std::vector<nb::object> held; // what the references above and the key's words lead to
    bool running = false, forgotten = false;
};

/// The ready calls of one communicator. The interpreter lock guards them.
class CallCache {
  public:
    CallCache() = default;
    CallCache(const CallCache &) = delete;
    CallCache &operator=(const CallCache &) = delete;
    ~CallCache() { forget(); }

    Ready *find(const Key &key) const {
        const auto found = calls_.find(key.words());
        return found == calls_.end() ? nullptr : found->second.get();
    }
    void add(const Key &key, std::unique_ptr<Ready> ready) {
        if (calls_.size() >= max_calls) forget();
        calls_.try_emplace(std::vector<Word>(key.words().begin(), key.words().end()), std::move(ready));
    }
    /// After this nothing that was decided before it is used again.
    void forget() {
        ++generation_;
        const auto calls = std::exchange(calls_, {});
        for (const auto &[key, ready] : calls) release(const_cast<std::unique_ptr<Ready> &>(ready));
    }
    std::uint64_t generation() const { return generation_; }

  private:
    static constexpr std::size_t max_calls = 4096;

    /// One that runs is deleted by whoever runs it.
    static void release(std::unique_ptr<Ready> &ready) {
        if (ready->running) ready.release()->forgotten = true;
    }

    std::unordered_map<std::vector<Word>, std::unique_ptr<Ready>, KeyHash, KeyEqual> calls_;
    std::uint64_t generation_ = 0;
};

/// A call that goes through Python, on the thread that makes it.
struct Miss {
    Miss *outer; // that it stands in: a signal handler may call, too
    int num_calls = 0;
    Communicator *communicator = nullptr;
    Launched *launched = nullptr;
    Call call{};
};

thread_local Miss *current_miss = nullptr;

// Running -------------------------------------------------------------------------------------------------------------

/// The interpreter lock, which is given up when it is time.
class LockUntilWait {
  public:
    LockUntilWait() = default;
    LockUntilWait(const LockUntilWait &) = delete;
    LockUntilWait &operator=(const LockUntilWait &) = delete;
    ~LockUntilWait() {
        if (state_ != nullptr) PyEval_RestoreThread(state_);
    }
    void release() {
        if (state_ == nullptr) state_ = PyEval_SaveThread();
    }

  private:
    PyThreadState *state_ = nullptr;
};

/// Keeps a call for one thread.
class Turn {
  public:
    explicit Turn(Ready &ready) : ready_(ready) { ready_.running = true; }
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;
    ~Turn() {
        ready_.running = false;
        if (ready_.forgotten) delete &ready_;
    }

  private:
    Ready &ready_;
};

/// Up to here a call takes less time than another thread has to wait for the interpreter anyway.
constexpr std::size_t most_bytes_under_lock = 16384;

/// False where Python's exception is set.
bool run(Ready &ready, const Memory &x, const Memory &out) {
    static const Hook interrupted = check_signals;
    const Turn turn(ready);
    const auto place = [&](Place where, const std::byte *fixed) {
        return where == Place::x ? x.data : where == Place::out ? out.data : const_cast<std::byte *>(fixed);
    };
    ready.call.launch.input = place(ready.input, ready.call.launch.input);
    ready.call.launch.output = place(ready.output, ready.call.launch.output);
    ++ready.launched.num_calls;
    try {
        LockUntilWait lock; // comes back before an exception is caught
        // A member that is a thread cannot go on without the interpreter.
        if (x.num_bytes + out.num_bytes > most_bytes_under_lock || ready.communicator.shares_process()) lock.release();
        ready.communicator.run(ready.call, interrupted, [&lock] { lock.release(); });
        return true;
    } catch (...) {
        set_python_error(std::current_exception());
        return false;
    }
}

/// Where an address that a call has used came from; `fixed` can only be memory of the communicator itself.
Place place_of(const std::byte *address, const Memory &x, const Memory &out) {
    if (address == nullptr) return Place::none;
    if (address == x.data) return Place::x;
    return address == out.data ? Place::out : Place::fixed;
}

// The method ----------------------------------------------------------------------------------------------------------

/// What classes with cached methods are derived from; a class of nanobind can be the base of one only.
struct Caller {
    PyObject_HEAD CallCache cache;
};

constexpr std::size_t nowhere = max_parameters;

/// The decorator. Python calls it without making a bound method first.
struct CachedMethod {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *function;
    PyTypeObject *owner; // the class whose calls came last
    std::size_t num_parameters, num_positional, x_at, out_at;
    std::array<PyObject *, max_parameters> names, defaults; // names are interned; no default: null

    PyObject *as_object() { return reinterpret_cast<PyObject *>(this); }
};

PyTypeObject *array_type = nullptr, *caller_type = nullptr, *method_type = nullptr;

/// One call's arguments by parameter, in the order of the signature.
struct Arguments {
    std::array<PyObject *, max_parameters> values;
    Memory x, out;
};

/// False where Python shall decide what is wrong, or the names are not those of a program's text.
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

/// False for arguments that are not plain arrays and constants.
bool add_arguments(const CachedMethod &method, Arguments &arguments, Key &key) {
    key.add(word_of(&method));
    for (std::size_t i = 0; i < method.num_parameters; ++i) {
        PyObject *const value = arguments.values[i];
        if (value == nullptr) return false;
        if ((i == method.x_at || i == method.out_at) && Py_TYPE(value) == array_type) {
            const auto &array = *reinterpret_cast<const NumpyArray *>(value);
            if (!add_array(key, array, i == method.x_at ? arguments.x : arguments.out)) return false;
        } else if (is_constant(value)) {
            key.add(word_of(value));
        } else {
            return false;
        }
    }
    key.add(relation_of(arguments.x, arguments.out));
    return true;
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

/// What a call has come to, unless it cannot be told from its arguments.
void remember(CachedMethod &method, CallCache &cache, const Key &key, const Arguments &arguments, nb::handle result,
              Miss miss) {
    const auto value_at = [&](std::size_t at) { return at < nowhere ? arguments.values[at] : nullptr; };
    Place place = Place::none;
    // Where out is given it is the result, though x may have been the same object.
    if (result.ptr() == value_at(method.out_at)) place = Place::out;
    else if (result.ptr() == value_at(method.x_at)) place = Place::x;
    if (place == Place::none && !result.is_none()) return; // a new array
    const Memory &x = arguments.x, &out = arguments.out;
    const Place input = place_of(miss.call.launch.input, x, out), output = place_of(miss.call.launch.output, x, out);
    const bool has_arrays = x.data != nullptr || out.data != nullptr;
    if (has_arrays && (input == Place::fixed || output == Place::fixed)) return;
    std::vector<nb::object> held{nb::find(*miss.communicator), nb::find(*miss.launched),
                                 nb::borrow(method.as_object())};
    if (!held[0].is_valid() || !held[1].is_valid()) return; // closed meanwhile
    for (std::size_t i = 0; i < method.num_parameters; ++i) {
        PyObject *const value = arguments.values[i];
        const bool is_array = Py_TYPE(value) == array_type;
        held.push_back(nb::borrow(is_array ? reinterpret_cast<const NumpyArray *>(value)->dtype : value));
    }
    cache.add(key, std::unique_ptr<Ready>(new Ready{std::move(miss.call), *miss.communicator, *miss.launched, input,
                                                    output, place, std::move(held)}));
}

/// A call by the Python method.
PyObject *call_python(CachedMethod &method, CallCache &cache, const Key &key, const Arguments &arguments,
                      PyObject *const *given, std::size_t num_given, PyObject *names) {
    Miss miss{.outer = current_miss};
    const std::uint64_t generation = cache.generation();
    current_miss = &miss;
    PyObject *const result = PyObject_Vectorcall(method.function, given, num_given, names);
    current_miss = miss.outer;
    if (result == nullptr || miss.num_calls != 1 || generation != cache.generation()) return result;
    try {
        remember(method, cache, key, arguments, result, std::move(miss));
    } catch (const std::bad_alloc &) { // the next call like it comes here again
    }
    return result;
}

PyObject *call(PyObject *callable, PyObject *const *given, std::size_t num_flagged, PyObject *names) {
    auto &method = *reinterpret_cast<CachedMethod *>(callable);
    const auto num_given = static_cast<std::size_t>(PyVectorcall_NARGS(num_flagged));
    CallCache *const cache = num_given > 0 ? cache_of(method, given[0]) : nullptr;
    Arguments arguments;
    Key key;
    if (cache == nullptr || !sort_arguments(method, given + 1, num_given - 1, names, arguments) ||
        !add_arguments(method, arguments, key)) {
        return PyObject_Vectorcall(method.function, given, num_flagged, names);
    }
    Ready *const ready = cache->find(key);
    if (ready == nullptr || ready->running) {
        return call_python(method, *cache, key, arguments, given, num_given, names);
    }
    const Memory &x = arguments.x, &out = arguments.out;
    const std::size_t alignment = alignment_of(ready->call.launch.dtype);
    if ((word_of(x.data) | word_of(out.data)) % alignment != 0) {
        return PyObject_Vectorcall(method.function, given, num_flagged, names);
    }
    const Place result = ready->result; // it may be forgotten meanwhile
    if (!run(*ready, x, out)) return nullptr;
    PyObject *const value =
        result == Place::none ? Py_None : arguments.values[result == Place::x ? method.x_at : method.out_at];
    return Py_NewRef(value);
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

/// CachedMethod(function): of `self` and parameters, of which "x" and "out" may be arrays.
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
        method.vectorcall = call;
        method.num_positional = num_positional - 1;
        method.num_parameters = num_all - 1;
        method.x_at = method.out_at = nowhere;
        for (std::size_t i = 0; i < method.num_parameters; ++i) {
            const auto name = nb::borrow<nb::str>(names[i + 1]);
            if (std::string_view(name.c_str()) == "x") method.x_at = i;
            if (std::string_view(name.c_str()) == "out") method.out_at = i;
            method.names[i] = owned(name);
            const std::size_t from_end = method.num_positional - i; // of what has a default by position
            if (i < method.num_positional && from_end <= num_defaults)
                method.defaults[i] = owned(by_position[num_defaults - from_end]);
            else if (i >= method.num_positional && !by_name.is_none() &&
                     PyDict_Contains(by_name.ptr(), name.ptr()) == 1)
                method.defaults[i] = owned(by_name[name]);
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

} // namespace

void note_call(Communicator &communicator, Launched &launched, const Call &call) {
    if (current_miss == nullptr) return;
    ++current_miss->num_calls;
    current_miss->communicator = &communicator;
    current_miss->launched = &launched;
    current_miss->call = call;
}

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
        "cached_method",
        [](const nb::object &function) {
            PyObject *const made = PyObject_CallOneArg(reinterpret_cast<PyObject *>(method_type), function.ptr());
            if (made == nullptr) throw nb::python_error();
            return nb::steal(made);
        },
        "function"_a);
    module.def(
        "forget_calls",
        [](nb::handle caller) {
            if (PyObject_TypeCheck(caller.ptr(), caller_type) == 0) throw nb::type_error("forget_calls: not a Caller");
            reinterpret_cast<Caller *>(caller.ptr())->cache.forget();
        },
        "caller"_a, "After this nothing that was decided before is used again.");
}
