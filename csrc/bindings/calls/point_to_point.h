// Sends and receives for Python.
#pragma once

#include "communicator/communicator.h"

#include <nanobind/nanobind.h>

/// Adds them to the class of communicators, and the handles of those that are under way to the module.
void bind_point_to_point(nanobind::module_ &m, nanobind::class_<hocket::Communicator> &communicator);
