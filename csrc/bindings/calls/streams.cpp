#include "bindings/calls/streams.h"

#include "bindings/python/blocking.h"
#include "streams/stream.h"

#include <memory>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <string>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

constinit thread_local PyObject *current = nullptr; // a reference, which who leaves `with hocket.stream` gives back

/// A call of a Python function, with where it was submitted.
class PythonTask final : public Task {
  public:
    PythonTask(nb::object function, nb::object arguments, nb::object code, int line)
        : function_(std::move(function)), arguments_(std::move(arguments)), code_(std::move(code)), line_(line) {}
    PythonTask(const PythonTask &) = delete;
    PythonTask &operator=(const PythonTask &) = delete;
    ~PythonTask() override {
        if (!function_.is_valid()) return;
        const WithLock acquire;
        forget();
    }

    void run() override {
        const WithLock acquire;
        const auto result = nb::steal(PyObject_CallObject(function_.ptr(), arguments_.ptr()));
        if (result.is_valid()) return forget();
        const nb::python_error error;
        error.value().attr("add_note")(where());
        forget();
        throw Raised(error);
    }

    std::string name() const override {
        const WithLock acquire;
        return qualified_name();
    }

  private:
    void forget() {
        for (nb::object *one : {&function_, &arguments_, &code_}) one->reset();
    }
    /// Of the function, of a partial one's, or of the type: what repr() says may be long, slow, or an error.
    std::string qualified_name() const {
        for (const nb::object &one : {function_, nb::getattr(function_, "func", nb::none())}) {
            const nb::object name = nb::getattr(one, "__qualname__", nb::none());
            if (nb::isinstance<nb::str>(name)) return nb::cast<std::string>(name);
        }
        return nb::cast<std::string>(function_.type().attr("__qualname__"));
    }
    std::string where() const {
        return "This was " + qualified_name() + ", submitted to a stream at " +
               nb::cast<std::string>(code_.attr("co_filename")) + ":" + std::to_string(line_) + ".";
    }

    nb::object function_, arguments_, code_;
    int line_;
};

/// What is around all that a stream's thread does. One thread state, as to make one takes longer than many a task; and
/// first a call of `begin`, which is given up with the lock held.
Stream::Around with_interpreter(nb::object begin) {
    return [begin = std::move(begin)](const std::function<void()> &serve) mutable {
        const WithLock acquire;
        if (!nb::steal(PyObject_CallNoArgs(begin.ptr())).is_valid()) PyErr_WriteUnraisable(begin.ptr());
        begin.reset();
        const WithoutLock release;
        serve();
    };
}

} // namespace

bool wait_for(Mark &mark, double seconds) {
    if (mark.is_passed()) return true;
    const auto limit = Clock::now() + duration(seconds);
    for (;;) {
        const auto left = std::max<std::chrono::nanoseconds>(limit - Clock::now(), std::chrono::nanoseconds(0));
        bool passed = false;
        {
            const WithoutLock release;
            passed = mark.wait(std::min<std::chrono::nanoseconds>(left, attention));
        }
        if (passed || left.count() == 0) return passed;
        check_signals();
    }
}

PyObject *current_stream() { return current; }

void bind_streams(nb::module_ &m) {
    nb::class_<Mark>(m, "Mark")
        .def("is_passed", &Mark::is_passed)
        .def("wait", &wait_for, "seconds"_a)
        // Once it is passed: the exception that it failed with, or None; the time in seconds.
        .def("exception", [](const Mark &self) { return exception_of(self.tell_failure()); })
        .def_prop_ro("seconds", [](const Mark &self) {
            return std::chrono::duration<double>(self.time().time_since_epoch()).count();
        });
    m.def("passed_mark", [] {
        auto mark = std::make_shared<Mark>();
        mark->pass(nullptr, Clock::now());
        return mark;
    });

    nb::class_<Stream>(m, "Stream")
        .def(
            "__init__",
            [](Stream *self, std::string name, std::shared_ptr<Recorder> recorder, nb::object begin) {
                new (self) Stream(std::move(name), with_interpreter(std::move(begin)), std::move(recorder));
            },
            "name"_a, "recorder"_a, "begin"_a)
        .def_prop_ro("name", &Stream::name)
        .def(
            "submit",
            [](Stream &self, nb::object function, nb::tuple arguments, nb::object code, int line) {
                self.submit(
                    std::make_unique<PythonTask>(std::move(function), std::move(arguments), std::move(code), line));
            },
            "function"_a, "arguments"_a, "code"_a, "line"_a)
        .def("record", &Stream::record, "timed"_a, "event"_a)
        .def("wait", &Stream::wait, "mark"_a, "name"_a, "event"_a)
        .def("is_idle", &Stream::is_idle)
        .def("take_exception", [](Stream &self) { return exception_of(self.take_failure()); });

    m.def("current_stream", [] { return nb::borrow(current == nullptr ? Py_None : current); });
    m.def(
        "exchange_current_stream",
        [](const nb::object &stream) {
            PyObject *const outer = std::exchange(current, stream.is_none() ? nullptr : stream.inc_ref().ptr());
            return outer == nullptr ? nb::object(nb::none()) : nb::steal(outer);
        },
        "stream"_a.none(), "Makes a stream the current one of this thread; returns the previous one.");
    m.def(
        "await_started_streams", [] { Stream::await_started(); }, nb::call_guard<WithoutLock>(),
        "Returns when no thread of a stream is registering with the interpreter.");
    m.def(
        "end_streams",
        [](bool at_once) {
            const WithoutLock release;
            Stream::end_all(at_once, check_signals);
        },
        "at_once"_a);
}
