// The reductions, as Python calls them and as they call Python.
#pragma once

#include "kernels/reduce.h"

#include <nanobind/nanobind.h>

/// A user's function of two arrays as the core's fold. It may be copied, called and destroyed by any thread: it takes
/// the GIL itself. What the function raises comes out as nanobind::python_error.
hocket::CustomFold custom_fold(nanobind::object function, hocket::Dtype dtype);

/// Adds DTYPES, OPS and fold to the module.
void bind_reductions(nanobind::module_ &module);
