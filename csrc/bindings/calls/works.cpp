#include "bindings/calls/works.h"

#include "bindings/calls/cached_method.h"
#include "bindings/calls/streams.h"
#include "bindings/python/blocking.h"

#include <chrono>
#include <exception>
#include <nanobind/stl/shared_ptr.h>
#include <span>
#include <structmember.h>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace hocket {
namespace {

/// Of more or longer ones Python looks now and then which of them are done.
constexpr Py_ssize_t most_unseen = 16;

constexpr double forever_seconds = 1e9;

PyTypeObject *fields_type = nullptr;
PyObject *add_name = nullptr;

/// So that its memory stays. False where Python's exception is set.
bool keep(PyObject *kept_by, PyObject *work, std::size_t num_bytes) {
    if (PySet_GET_SIZE(kept_by) < most_unseen && num_bytes <= longest_unseen) return PySet_Add(kept_by, work) == 0;
    return nb::steal(PyObject_CallMethodOneArg(kept_by, add_name, work)).is_valid();
}

/// It is done, or has not begun. Leaves Python's exception as it is.
void let_go(WorkFields &work) {
    PyObject *const kept_by = work.at(WorkFields::kept_by);
    if (kept_by != nullptr && PySet_Check(kept_by)) PySet_Discard(kept_by, reinterpret_cast<PyObject *>(&work));
}

// Waiting -------------------------------------------------------------------------------------------------------------

template <typename Object> Object *object_at(const WorkFields &work, WorkFields::Field field) {
    Object *found = nullptr;
    PyObject *const value = work.at(field);
    return value != nullptr && nb::try_cast(nb::handle(value), found, false) ? found : nullptr;
}

/// Waits on the host for as long as it takes. Null where Python shall.
const Mark *await_end(const WorkFields &work) {
    if (const auto *message = object_at<MessageWork>(work, WorkFields::work)) {
        PointToPoint &messages = message->communicator->messages();
        if (!messages.has_ended(*message->operation)) {
            const WithoutLock release;
            messages.wait(message->operation, duration(forever_seconds), check_signals);
        }
        return message->operation->end.get();
    }
    const auto *call = object_at<Work>(work, WorkFields::work);
    auto *const communicator = call == nullptr ? nullptr : object_at<Communicator>(work, WorkFields::communicator);
    if (communicator == nullptr) return nullptr;
    wait_for_work(*communicator, *call, forever_seconds);
    return &call->end();
}

/// What `work.wait()` returns on the host; null where Python shall decide. Throws what has ended it.
PyObject *result_of(WorkFields &work) {
    const Mark *const end = await_end(work);
    if (end == nullptr || !end->is_passed()) return nullptr;
    let_go(work);
    if (end->failure()) std::rethrow_exception(end->tell_failure());
    PyObject *const result = work.at(WorkFields::result);
    return Py_NewRef(result == nullptr ? Py_None : result);
}

/// Stands before the method `wait`: who waits for as long as it takes needs no Python.
PyObject *wait(PyObject *callable, PyObject *const *given, std::size_t num_flagged, PyObject *names) {
    const auto num_given = PyVectorcall_NARGS(num_flagged);
    const bool is_without_limit = num_given == 1 || (num_given == 2 && given[1] == Py_None);
    if (is_without_limit && names == nullptr && current_stream() == nullptr) {
        WorkFields *const work = work_of(given[0]);
        try {
            if (PyObject *const result = work == nullptr ? nullptr : result_of(*work)) return result;
        } catch (...) {
            set_python_error(std::current_exception());
            return nullptr;
        }
    }
    return PyObject_Vectorcall(reinterpret_cast<CachedMethod *>(callable)->function, given, num_flagged, names);
}

// Beginning -----------------------------------------------------------------------------------------------------------

/// Makes a work, keeps it, and starts what it stands for, or lets go of it where that throws.
template <typename Start>
PyObject *begin(const WorkModel &model, std::size_t num_bytes, nb::object arrays, PyObject *result,
                PyObject *communicator, const Start &start) {
    auto *const type = reinterpret_cast<PyTypeObject *>(model.type.ptr());
    const auto made = nb::steal(type->tp_alloc(type, 0));
    if (!made.is_valid() || !arrays.is_valid()) return nullptr;
    auto &work = *reinterpret_cast<WorkFields *>(made.ptr());
    work.set(WorkFields::arrays, std::move(arrays));
    work.set(WorkFields::result, nb::borrow(result));
    work.set(WorkFields::communicator, nb::borrow(communicator));
    work.set(WorkFields::what, model.what);
    work.set(WorkFields::kept_by, model.kept_by);
    try {
        if (!keep(model.kept_by.ptr(), made.ptr(), num_bytes)) throw nb::python_error();
        start(work);
    } catch (...) {
        set_python_error(std::current_exception());
        let_go(work);
        work.set(WorkFields::arrays, nb::steal(PyTuple_New(0)));
        return nullptr;
    }
    return Py_NewRef(made.ptr());
}

// The type ------------------------------------------------------------------------------------------------------------

std::span<PyObject *> fields_of(PyObject *object) { return reinterpret_cast<WorkFields *>(object)->fields; }

int traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    for (PyObject *const field : fields_of(object)) Py_VISIT(field);
    return 0;
}

int clear(PyObject *object) {
    for (PyObject *&field : fields_of(object)) Py_CLEAR(field);
    return 0;
}

void destroy(PyObject *object) {
    PyTypeObject *const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

constexpr Py_ssize_t place_of(WorkFields::Field field) {
    return offsetof(WorkFields, fields) + static_cast<Py_ssize_t>(field * sizeof(PyObject *));
}

PyMemberDef members[] = {
    {"_arrays", T_OBJECT, place_of(WorkFields::arrays), 0, nullptr},
    {"_result", T_OBJECT, place_of(WorkFields::result), 0, nullptr},
    {"_what", T_OBJECT, place_of(WorkFields::what), 0, nullptr},
    {"_communicator", T_OBJECT, place_of(WorkFields::communicator), 0, nullptr},
    {"_work", T_OBJECT, place_of(WorkFields::work), 0, nullptr},
    {"_mark", T_OBJECT, place_of(WorkFields::mark), 0, nullptr},
    {"kept_by", T_OBJECT, place_of(WorkFields::kept_by), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(destroy)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec specification = {
    .name = "hocket._core.WorkFields",
    .basicsize = sizeof(WorkFields),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

} // namespace

bool wait_for_work(Communicator &communicator, const Work &work, double seconds) {
    const std::uint64_t begin = ticks();
    const auto until = Clock::now() + duration(seconds);
    if (!work.end().is_passed()) {
        const WithoutLock release;
        communicator.run_awaited(work, until);
        if (!work.end().is_passed()) check_signals();
    }
    const bool is_passed = wait_for(work.end(), std::chrono::duration<double>(until - Clock::now()).count());
    work.record_wait(begin);
    return is_passed;
}

WorkFields *work_of(PyObject *object) {
    return PyObject_TypeCheck(object, fields_type) == 0 ? nullptr : reinterpret_cast<WorkFields *>(object);
}

nb::object WorkModel::learn_from(nb::handle work) {
    const WorkFields *const fields = work_of(work.ptr());
    if (fields == nullptr || fields->at(WorkFields::kept_by) == nullptr) return {};
    if (PySet_Check(fields->at(WorkFields::kept_by)) == 0) return {};
    type = nb::borrow(reinterpret_cast<PyObject *>(Py_TYPE(work.ptr())));
    what = nb::borrow(fields->at(WorkFields::what));
    kept_by = nb::borrow(fields->at(WorkFields::kept_by));
    PyObject *const result = fields->at(WorkFields::result);
    return nb::borrow(result == nullptr ? Py_None : result);
}

PyObject *begin_message(const WorkModel &model, const Message &message, std::chrono::nanoseconds timeout,
                        PyObject *array, PyObject *result, bool releases) {
    return begin(model, message.num_bytes, nb::steal(PyTuple_Pack(1, array)), result, nullptr, [&](WorkFields &work) {
        const nb::object handle = nb::cast(MessageWork{model.communicator, nullptr}); // before: then nothing may fail
        Operations operations;
        {
            LockUntilWait lock;
            const Hook before_wait = [&lock] { lock.release(); };
            if (releases) lock.release();
            operations = model.communicator->messages().begin({&message, 1}, timeout, nullptr, before_wait);
        }
        nb::inst_ptr<MessageWork>(handle)->operation = std::move(operations.front());
        work.set_handle(handle);
    });
}

void submit_work(Communicator &communicator, const std::shared_ptr<Work> &work, std::shared_ptr<Mark> after,
                 WorkFields &fields) {
    const nb::object handle = nb::cast(work); // before: then nothing may fail
    {
        const WithoutLock release;
        communicator.submit(work, std::move(after));
    }
    fields.set_handle(handle);
}

PyObject *submit_call(const WorkModel &model, const Call &call, std::size_t num_bytes, PyObject *x, PyObject *out,
                      PyObject *result) {
    nb::object arrays = nb::steal(PyTuple_Pack(2, x == nullptr ? Py_None : x, out == nullptr ? Py_None : out));
    const nb::object communicator = nb::find(*model.communicator);
    return begin(model, num_bytes, std::move(arrays), result, communicator.ptr(), [&](WorkFields &work) {
        submit_work(*model.communicator, std::make_shared<Work>(call), nullptr, work);
    });
}

void bind_works(nb::module_ &module) {
    PyObject *const type = PyType_FromSpec(&specification);
    if (type == nullptr) throw nb::python_error();
    fields_type = reinterpret_cast<PyTypeObject *>(type); // for good
    add_name = PyUnicode_InternFromString("add");
    module.attr("WorkFields") = nb::borrow(type);
    module.def(
        "waiting_method", [](const nb::object &function) { return make_cached_method(function, wait); }, "function"_a);
}

} // namespace hocket
