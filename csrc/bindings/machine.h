// The measurements of this machine, for Python.
#pragma once

#include <nanobind/nanobind.h>

/// Adds PASSES, bytes_per_second and hop_seconds to the module.
void bind_machine(nanobind::module_ &module);
