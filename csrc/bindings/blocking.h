// What the bindings of blocking calls share; module.cpp defines it.
#pragma once

#include "error.h"

#include <chrono>
#include <exception>
#include <nanobind/nanobind.h>

/// The exception of hocket.errors for a failure.
nanobind::object exception_of(const hocket::Failure &failure);

/// Makes it the one that Python raises, where nanobind does not.
void set_python_error(const std::exception_ptr &pointer);

/// Between slices of a wait: lets Python run its signal handlers, whose exceptions end the wait.
void check_signals();

std::chrono::nanoseconds duration(double seconds);
