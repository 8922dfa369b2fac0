// Registered memory for Python.
#pragma once

#include <nanobind/nanobind.h>

/// Adds Arena and record_stream to the module.
void bind_memory(nanobind::module_ &module);
