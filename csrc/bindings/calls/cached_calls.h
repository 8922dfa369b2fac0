// Calls that a program repeats: the way from a method of the Python class Communicator to the core, without Python.
#pragma once

#include "communicator/communicator.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <nanobind/nanobind.h>
#include <vector>

/// What one communicator uses of a prepared plan, and how often it has. The interpreter lock guards it.
struct Launched {
    std::shared_ptr<const hocket::Plan> plan;
    std::uint64_t schedule;
    nanobind::object labels;
    std::uint64_t num_calls = 0;
};

/// The communicator runs this call. Cached methods that are under way on this thread remember that.
void note_call(hocket::Communicator &communicator, Launched &launched, const hocket::Call &call);
/// The same, of messages that it waits for: one, or one sent and one received.
void note_messages(hocket::Communicator &communicator, const std::vector<hocket::Message> &messages,
                   std::chrono::nanoseconds timeout);
// The same, of what begins now and is waited for later.
void note_submitted(const std::shared_ptr<hocket::Communicator> &communicator, Launched &launched,
                    const hocket::Call &call);
void note_begun(const std::shared_ptr<hocket::Communicator> &communicator, const hocket::Message &message,
                std::chrono::nanoseconds timeout);

void bind_cached_calls(nanobind::module_ &module);
