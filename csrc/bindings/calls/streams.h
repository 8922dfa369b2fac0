// Streams and marks for Python.
#pragma once

#include <nanobind/nanobind.h>

/// The stream that is current on this thread: an object of the classes in hocket.runtime.streams, or null for the host.
/// The interpreter is locked.
PyObject *current_stream();

void bind_streams(nanobind::module_ &module);
