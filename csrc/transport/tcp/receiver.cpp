#include "transport/tcp/receiver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace hocket {
namespace {

/// How many bytes have come; 0: none now. `has_ended`: and none will.
std::size_t receive_some(int descriptor, std::byte *to, std::size_t most, bool &has_ended) {
    if (has_ended) return 0;
    ssize_t come = -1;
    do come = recv(descriptor, to, most, MSG_DONTWAIT);
    while (come < 0 && errno == EINTR);
    has_ended = come == 0 || (come < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
    return come > 0 ? static_cast<std::size_t>(come) : 0;
}

std::size_t num_waiting(int descriptor) {
    int num_bytes = 0;
    return ioctl(descriptor, FIONREAD, &num_bytes) == 0 && num_bytes > 0 ? static_cast<std::size_t>(num_bytes) : 0;
}

} // namespace

bool Receiver::look(View &found) {
    if (!begin_frame()) return false;
    if (!has_all()) receive();
    if (!begin_frame()) return false;
    if (!is_begun_) return true;
    // The last byte is shown once the filling has come: what is released of a frame is then all of it.
    const std::size_t come = end_ - begin_ - sizeof frame_;
    const std::size_t readable = has_all() ? frame_.num_bytes : std::min<std::size_t>(come, frame_.num_bytes - 1);
    if (readable == num_released_) return true;
    const std::byte *const first = memory_.get() + begin_ + sizeof frame_;
    found = {.bytes = Bytes(first + num_released_, first + readable),
             .tag = frame_.tag,
             .num_coming = frame_.num_bytes - readable};
    return true;
}

void Receiver::receive() {
    if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (begin_ == end_) begin_ = end_ = 0;
    end_ += receive_some(descriptor_, memory_.get() + end_, capacity - end_, has_ended_);
}

/// Begins with the next frame if its header has come: then there is room for all of it. False: no frame begins so.
bool Receiver::begin_frame() {
    if (is_begun_ || end_ - begin_ < sizeof frame_) return true;
    std::memcpy(&frame_, memory_.get() + begin_, sizeof frame_);
    if (frame_.num_bytes == 0 || frame_.num_bytes > FrameHeader::most_bytes) return false;
    if (begin_ + frame_.num_in_all() > capacity) {
        std::memmove(memory_.get(), memory_.get() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
    }
    num_released_ = 0;
    return is_begun_ = true;
}

bool Receiver::release(std::size_t num_bytes) {
    num_released_ += num_bytes;
    if (num_released_ < frame_.num_bytes) return false;
    begin_ += frame_.num_in_all();
    is_begun_ = false;
    return true;
}

/// However fast the peer sends, this ends: where there is more than was asked for at first, it reads what has come by
/// then.
std::uint64_t NumberReceiver::latest() {
    std::array<std::byte, 64 * sizeof latest_> come{};
    std::optional<std::size_t> left;
    while (!left || *left > 0) {
        std::copy_n(next_.begin(), num_come_, come.begin());
        const std::size_t most = std::min(come.size() - num_come_, left.value_or(come.size()));
        const std::size_t more = receive_some(descriptor_, come.data() + num_come_, most, has_ended_);
        const std::size_t all = num_come_ + more;
        num_come_ = all % sizeof latest_;
        const std::byte *const rest = come.data() + (all - num_come_);
        if (all >= sizeof latest_) std::memcpy(&latest_, rest - sizeof latest_, sizeof latest_);
        std::copy_n(rest, num_come_, next_.begin());
        if (more < most) break;
        left = left ? *left - more : num_waiting(descriptor_);
    }
    return latest_;
}

} // namespace hocket
