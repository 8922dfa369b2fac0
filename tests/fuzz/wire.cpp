#include "wire.h"

#include "script.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <sys/ioctl.h>
#include <sys/types.h>

namespace hocket::fuzz {
namespace {

/// Bytes that tell where they were sent, so that what is shown at a wrong place differs.
const std::vector<std::byte> &filling() {
    static const std::vector<std::byte> bytes = [] {
        std::vector<std::byte> made(1 << 20);
        std::uint64_t state = 1;
        for (std::byte &one : made) one = static_cast<std::byte>((state = mix(state, 7)) >> 56);
        return made;
    }();
    return bytes;
}

} // namespace

Wire &Wire::of(int descriptor) {
    static std::array<Wire, num_wires> wires;
    HOLDS(descriptor >= 0 && descriptor < num_wires);
    return wires[static_cast<std::size_t>(descriptor)];
}

void Wire::clear() {
    sent_.clear(); // its memory is used again
    num_arrived_ = num_taken_ = num_looks_ = flood_ = 0;
    has_ended_ = false;
    error_ = 0;
}

void Wire::send(Bytes bytes) {
    if (has_room(bytes.size()) && !has_ended_) sent_.insert(sent_.end(), bytes.begin(), bytes.end());
}

void Wire::send_filling(std::size_t num_bytes) { send(Bytes(filling()).subspan(sent_.size() % 1000, num_bytes)); }

void Wire::end(int error) {
    num_arrived_ = sent_.size();
    has_ended_ = true;
    error_ = error;
}

long Wire::receive(void *to, std::size_t most) {
    HOLDS(most > 0); // else the system says that the peer has ended
    ++num_looks_;
    const std::size_t come = std::min(most, num_waiting());
    if (come > 0) std::memcpy(to, sent_.data() + num_taken_, come);
    num_taken_ += come;
    arrive(flood_);
    if (come > 0) return static_cast<long>(come);
    if (!has_ended_ || error_ != 0) errno = has_ended_ ? error_ : EAGAIN;
    return has_ended_ && error_ == 0 ? 0 : -1;
}

int Wire::count_waiting() {
    const std::size_t found = num_waiting();
    arrive(flood_);
    return static_cast<int>(found);
}

} // namespace hocket::fuzz

extern "C" {
ssize_t __wrap_recv(int descriptor, void *to, std::size_t most, int) {
    return hocket::fuzz::Wire::of(descriptor).receive(to, most);
}

int __wrap_ioctl(int descriptor, unsigned long request, ...) {
    HOLDS(request == FIONREAD);
    std::va_list arguments;
    va_start(arguments, request);
    *va_arg(arguments, int *) = hocket::fuzz::Wire::of(descriptor).count_waiting();
    va_end(arguments);
    return 0;
}
}
