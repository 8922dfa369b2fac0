// Calls of a process group of PyTorch that a program repeats: the way from its methods to the core, without Python.
#pragma once

#include <nanobind/nanobind.h>

void bind_group_calls(nanobind::module_ &module);
