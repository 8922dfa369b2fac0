// What comes in through one socket.
#pragma once

#include "transport/transport.h"

#include <array>
#include <cstdint>
#include <memory>

namespace hocket {

/// What goes before the bytes of a frame. After them a frame is filled up to a multiple of eight bytes, so that
/// elements are aligned where they are received.
struct FrameHeader {
    std::uint32_t tag = 0;
    std::uint32_t num_bytes = 0; // 1 to most_bytes

    static constexpr std::size_t most_bytes = piece_bytes + cache_line; // a piece and a head
    std::size_t num_padding() const { return round_up(num_bytes, sizeof *this) - num_bytes; }
    std::size_t num_in_all() const { return sizeof *this + num_bytes + num_padding(); }
};

/// Frames, one after the other.
class Receiver {
  public:
    /// Of a connected stream socket, which somebody else closes.
    explicit Receiver(int descriptor) : descriptor_(descriptor) {}

    /// What has come of the first frame and is not released yet. False: the peer has sent something else than frames.
    bool look(View &found);
    /// Whether that was the rest of a frame.
    bool release(std::size_t num_bytes);
    /// Whether the peer has ended what it sends, and all of that has come.
    bool has_ended() const { return has_ended_; }

  private:
    /// Two of the longest frames: all of a frame has to lie in one place, and of frames that follow each other none is
    /// moved for that as long as the two at hand fit.
    static constexpr std::size_t capacity = 2 * (sizeof(FrameHeader) + FrameHeader::most_bytes);

    void receive();
    bool begin_frame();
    bool has_all() const { return is_begun_ && end_ - begin_ >= frame_.num_in_all(); }

    int descriptor_;
    bool has_ended_ = false;
    std::unique_ptr<std::byte[]> memory_; // made when it is first looked at
    std::size_t begin_ = 0, end_ = 0;     // of what has come, from the header of the first frame on
    bool is_begun_ = false;               // that header has come
    FrameHeader frame_;
    std::size_t num_released_ = 0; // of the bytes of the first frame
};

/// Numbers, of which only the last one counts.
class NumberReceiver {
  public:
    explicit NumberReceiver(int descriptor) : descriptor_(descriptor) {}

    /// The last one that has come; 0 at first.
    std::uint64_t latest();
    /// Whether no other will come, as the last look has found.
    bool has_ended() const { return has_ended_; }

  private:
    int descriptor_;
    bool has_ended_ = false;
    std::uint64_t latest_ = 0;
    std::array<std::byte, sizeof latest_> next_{}; // of which so many bytes have come
    std::size_t num_come_ = 0;
};

} // namespace hocket
