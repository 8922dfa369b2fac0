// Frames, and the numbers that come back, as a peer that knows the key may send them.

#include "script.h"
#include "transport/tcp/receiver.h"
#include "wire.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

namespace hocket::fuzz {
namespace {

/// Reads frames, and knows from all that was sent what there is to be read.
class Reader {
  public:
    explicit Reader(Wire &wire) : wire_(wire) {}

    /// False: what comes is no frame.
    bool look() {
        const std::size_t before = wire_.num_taken(), waiting = wire_.num_waiting();
        View view;
        const bool is_good = receiver_.look(view);
        const std::size_t come = wire_.num_taken() - at_;
        if (come < sizeof(FrameHeader)) {
            HOLDS(is_good && view.bytes.empty() && (waiting == 0 || wire_.num_taken() > before));
            return true;
        }
        FrameHeader header;
        std::memcpy(&header, wire_.sent().data() + at_, sizeof header);
        HOLDS(is_good == (header.num_bytes > 0 && header.num_bytes <= piece_bytes + cache_line));
        if (!is_good) return false;
        const std::size_t padding = (8 - header.num_bytes % 8) % 8;
        const bool has_all = come >= sizeof header + header.num_bytes + padding;
        HOLDS(has_all || waiting == 0 || wire_.num_taken() > before);
        const std::size_t readable =
            has_all ? header.num_bytes : std::min<std::size_t>(come - sizeof header, header.num_bytes - 1);
        HOLDS(view.bytes.size() == readable - num_released_);
        num_shown_ = view.bytes.size();
        if (num_shown_ == 0) return true;
        HOLDS(view.tag == header.tag && view.num_coming == header.num_bytes - readable && !view.attached);
        HOLDS(reinterpret_cast<std::uintptr_t>(view.bytes.data() - num_released_) % 8 == 0);
        const std::byte *const expected = wire_.sent().data() + at_ + sizeof header + num_released_;
        HOLDS(std::memcmp(view.bytes.data(), expected, num_shown_) == 0);
        num_in_frame_ = header.num_bytes;
        num_in_all_ = sizeof header + header.num_bytes + padding;
        return true;
    }

    void release(std::size_t num_bytes) {
        receiver_.release(num_bytes);
        num_released_ += num_bytes;
        num_shown_ = 0; // the view ends
        if (num_released_ < num_in_frame_) return;
        at_ += num_in_all_;
        num_released_ = 0;
    }

    std::size_t num_shown() const { return num_shown_; }
    std::size_t at() const { return at_; }
    bool has_ended() const { return receiver_.has_ended(); }

  private:
    Wire &wire_;
    Receiver receiver_{0};
    std::size_t at_ = 0; // in all that was sent: the frame that is read
    std::size_t num_released_ = 0, num_shown_ = 0;
    std::size_t num_in_frame_ = 0, num_in_all_ = 0; // of the frame that was shown
};

void send_frame(Wire &wire, Script &script) {
    const std::size_t length = script.length(FrameHeader::most_bytes);
    const FrameHeader header{.tag = static_cast<std::uint32_t>(script.number(1)),
                             .num_bytes = static_cast<std::uint32_t>(length)};
    wire.send(std::as_bytes(std::span(&header, 1)));
    wire.send_filling(header.num_in_all() - sizeof header);
}

} // namespace

void fuzz_frames(Bytes input) {
    enum Command { frame, header, raw, filling, come, look, release, end, num_commands };
    Wire &wire = Wire::of(0);
    wire.clear();
    Reader reader(wire);
    Script script(input);
    bool is_good = true;
    while (script.has_more() && is_good) {
        switch (script.number(1) % num_commands) {
        case frame: send_frame(wire, script); break;
        case header: wire.send(script.take(sizeof(FrameHeader))); break;
        case raw: wire.send(script.take(script.number(1) % 32)); break;
        case filling: wire.send_filling(script.length(FrameHeader::most_bytes)); break;
        case come: wire.arrive(script.length(2 * FrameHeader::most_bytes)); break;
        case look: is_good = reader.look(); break;
        case release: {
            const std::size_t of = script.number(1);
            if (reader.num_shown() > 0) reader.release(1 + of * (reader.num_shown() - 1) / 255);
            break;
        }
        case end: wire.end(script.number(1) % 2 == 0 ? 0 : ECONNRESET); break;
        }
    }
    // The rest comes and is read: each look takes something, or all there is was read.
    wire.end(0);
    while (is_good && !reader.has_ended()) {
        is_good = reader.look();
        if (is_good && reader.num_shown() > 0) reader.release(reader.num_shown());
    }
    while (is_good && (is_good = reader.look()) && reader.num_shown() > 0) reader.release(reader.num_shown());
}

void fuzz_numbers(Bytes input) {
    enum Command { raw, come, flood, latest, end, num_commands };
    Wire &wire = Wire::of(0);
    wire.clear();
    NumberReceiver receiver(0);
    Script script(input);
    const auto look = [&] {
        const std::size_t waiting = wire.num_waiting(), looks = wire.num_looks();
        const std::uint64_t found = receiver.latest();
        std::uint64_t last = 0;
        const std::size_t num_numbers = wire.num_taken() / sizeof last;
        if (num_numbers > 0) std::memcpy(&last, wire.sent().data() + (num_numbers - 1) * sizeof last, sizeof last);
        HOLDS(found == last);
        // However fast the peer sends, it cannot keep this rank here.
        HOLDS(wire.num_looks() - looks <= 3 + waiting / 64);
    };
    while (script.has_more()) {
        switch (script.number(1) % num_commands) {
        case raw:
            wire.send(script.take(script.number(1) % 32));
            wire.send_filling(script.length(100'000));
            break;
        case come: wire.arrive(script.length(100'000)); break;
        case flood: wire.set_flood(script.length(1000)); break;
        case latest: look(); break;
        case end: wire.end(script.number(1) % 2 == 0 ? 0 : ECONNRESET); break;
        }
    }
    wire.set_flood(0);
    wire.end(0);
    look();
    HOLDS(wire.num_waiting() == 0);
}

} // namespace hocket::fuzz
