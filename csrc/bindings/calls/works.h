// What the works of Python are in memory, so that a call can make one, and wait for it, without Python.
#pragma once

#include "communicator/communicator.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <nanobind/nanobind.h>
#include <utility>

namespace hocket {

/// A send or receive under way, with what runs it.
struct MessageWork {
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Operation> operation;
};

/// False when the time ran out first.
bool wait_for_work(Communicator &communicator, const Work &work, double seconds);

/// The base of Python's class Work: its fields, each a reference, or null for None.
struct WorkFields {
    enum Field : std::size_t { arrays, result, what, communicator, work, mark, kept_by, num_fields };

    PyObject_HEAD std::array<PyObject *, num_fields> fields;

    PyObject *at(Field field) const { return fields[field]; }
    /// What was there before goes, which may run Python's code.
    void set(Field field, nanobind::object value) { Py_XDECREF(std::exchange(fields[field], value.release().ptr())); }
    void set_handle(const nanobind::object &handle) {
        set(work, handle);
        set(mark, handle);
    }
};

/// Null for all else.
WorkFields *work_of(PyObject *object);

/// Launches it, and gives its handle to the Work of Python's.
void submit_work(Communicator &communicator, const std::shared_ptr<Work> &work, std::shared_ptr<Mark> after,
                 WorkFields &fields);

/// What the works of one kind of call have in common.
struct WorkModel {
    std::shared_ptr<Communicator> communicator;
    nanobind::object type{}, what{}, kept_by{};

    /// As they are in this one; what its `wait` returns. Null where it is no Work of Python's, or none that is kept
    /// while it is under way.
    nanobind::object learn_from(nanobind::handle work);
};

// These begin a call: a new reference to its Work, null where Python's exception is set. `array`, `x` and `out` are the
// objects whose memory it uses, `result` is what its `wait` returns: null for none.

/// `releases`: others may need the interpreter while it begins.
PyObject *begin_message(const WorkModel &model, const Message &message, std::chrono::nanoseconds timeout,
                        PyObject *array, PyObject *result, bool releases);
PyObject *submit_call(const WorkModel &model, const Call &call, std::size_t num_bytes, PyObject *x, PyObject *out,
                      PyObject *result);

void bind_works(nanobind::module_ &module);

} // namespace hocket
