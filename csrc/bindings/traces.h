// One rank's recorder for Python.
#pragma once

#include <nanobind/nanobind.h>

void bind_traces(nanobind::module_ &module);
