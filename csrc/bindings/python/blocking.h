// What the bindings of blocking calls share; module.cpp defines it.
#pragma once

#include "base/error.h"
#include "bindings/python/interpreter_lock.h"
#include "streams/mark.h"

#include <chrono>
#include <exception>
#include <memory>
#include <nanobind/nanobind.h>
#include <string>

/// What Python has raised on another thread, to be raised again by each that depends on it. The core keeps it as an
/// exception_ptr; unlike nanobind's own, it may be thrown as often as wanted.
class Raised final : public std::exception {
  public:
    /// The interpreter is locked.
    explicit Raised(const nanobind::python_error &error);
    const char *what() const noexcept override { return text_.c_str(); }
    nanobind::handle value() const { return value_.get(); }

  private:
    std::shared_ptr<PyObject> value_;
    std::string text_;
};

/// The exception that Python raises for a failure; none for null.
nanobind::object exception_of(const std::exception_ptr &failure);

/// Makes it the one that Python raises, where nanobind does not.
void set_python_error(const std::exception_ptr &pointer);

/// Between slices of a wait: lets Python run its signal handlers, whose exceptions end the wait.
void check_signals();

std::chrono::nanoseconds duration(double seconds);

/// False when the time ran out first; streams.cpp defines it.
bool wait_for(hocket::Mark &mark, double seconds);
