#pragma once

#include <nanobind/nanobind.h>

void bind_routes(nanobind::module_ &module);
