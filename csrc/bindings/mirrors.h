#pragma once

#include <nanobind/nanobind.h>

void bind_mirrors(nanobind::module_ &module);
