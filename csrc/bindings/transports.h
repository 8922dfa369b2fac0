#pragma once

#include <nanobind/nanobind.h>

void bind_transports(nanobind::module_ &module);
