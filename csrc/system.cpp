#include "system.h"

#include <pthread.h>

namespace hocket {
namespace {

std::atomic<unsigned> generation{0};

} // namespace

unsigned fork_generation() {
    // Asking the kernel for the process id would cost more than a whole small collective.
    static const int registered = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
    static_cast<void>(registered);
    return generation.load(std::memory_order_relaxed);
}

} // namespace hocket
