// How arrays of Python enter the core.
#pragma once

#include "base/types.h"

#include <nanobind/nanobind.h>

struct Array {
    std::uintptr_t address = 0;
    std::size_t count = 0;
    hocket::Dtype dtype = hocket::Dtype::float32;
};

/// The memory of anything with the buffer protocol or DLPack, in CPU memory, C-contiguous and aligned, or an error that
/// calls it `name`. The caller keeps the object alive.
Array array_of(nanobind::handle object, bool writable, const char *name);

/// The same as (address, number of elements, dtype).
nanobind::tuple describe(nanobind::handle object, bool writable, const char *name);
