// How arrays of Python enter the core.
#pragma once

#include "types.h"

#include <nanobind/nanobind.h>

/// (address, number of elements, dtype) of anything with the buffer protocol or DLPack; `name` is for the errors.
nanobind::tuple describe(nanobind::handle object, bool writable, const char *name);
