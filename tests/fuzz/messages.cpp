// Messages of two peers that know the key and say what they like, while this rank sends and receives.

#include "messages/match.h"
#include "script.h"
#include "transport/tcp/receiver.h"
#include "wire.h"

#include <array>
#include <cstring>
#include <memory>
#include <sanitizer/asan_interface.h>
#include <utility>
#include <vector>

namespace hocket::fuzz {
namespace {

constexpr int num_ranks = Wire::num_wires; // this one is 0
constexpr std::uint8_t epoch = 3;
const std::uint32_t right_tag = Fingerprint::tag(1, epoch);

/// What the peers send comes in frames, and what this rank posts is taken or not.
class Peers final : public Transport {
  public:
    Reach reach(std::span<const int>) const override {
        return {.is_stream = true, .head_bytes = cache_line, .whole_pieces = true};
    }
    Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t, const Manner &how) override {
        HOLDS(peers.size() == 1 && !bytes.empty() && how.head.size() <= cache_line);
        if (!takes_) return {};
        Peer &peer = at(peers[0]);
        HOLDS(__asan_region_is_poisoned(const_cast<std::byte *>(bytes.data()), bytes.size()) == nullptr);
        ++peer.num_posted;
        return {.num_bytes = std::min(bytes.size(), piece_bytes), .lent = how.way == Way::stream, .way = Way::stream};
    }
    std::uint64_t posted(int peer) const override { return at(peer).num_posted; }
    std::uint64_t released(int peer) const override { return holds_loans_ ? 0 : at(peer).num_posted; }
    View view(int peer) const override {
        View found;
        if (peer != 0 && !at(peer).frames->look(found)) throw Failure::internal("a malformed frame");
        return found;
    }
    void release(int peer, std::size_t num_bytes) override {
        if (num_bytes > 0) at(peer).frames->release(num_bytes);
    }
    void tell(int, std::uint64_t) override {}
    std::uint64_t told(int peer) const override { return at(peer).told; }

    void hear(int peer, std::uint64_t number) { at(peer).told = number; }
    void take(bool takes) { takes_ = takes; }
    void hold_loans(bool holds) { holds_loans_ = holds; }

  private:
    struct Peer {
        std::unique_ptr<Receiver> frames;
        std::uint64_t num_posted = 0, told = 0;
    };

    static std::array<Peer, num_ranks> connect() {
        std::array<Peer, num_ranks> peers;
        for (int i = 1; i < num_ranks; ++i) peers[static_cast<std::size_t>(i)].frames = std::make_unique<Receiver>(i);
        return peers;
    }
    const Peer &at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }
    Peer &at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

    std::array<Peer, num_ranks> peers_ = connect();
    bool takes_ = true, holds_loans_ = false;
};

/// As Matcher's own, which is private: what goes before each frame.
struct Header {
    std::uint8_t kind = 0, scope = 0, dtype = 0, unused = 0;
    std::uint32_t number = 0;
    std::uint64_t tag = 0, num_bytes = 0;
};
static_assert(sizeof(Header) == 24);

class Conversation {
  public:
    explicit Conversation(Bytes input) : script_(input) {
        for (int peer = 1; peer < num_ranks; ++peer) Wire::of(peer).clear();
    }

    void go_on() {
        enum Command { receive, send, message, pieces, bytes, advance, told, takes, loans, withdraw, num_commands };
        while (script_.has_more()) {
            switch (script_.number(1) % num_commands) {
            case receive: post(false); break;
            case send: post(true); break;
            case message: hear_message(); break;
            case pieces: hear_filling(); break;
            case bytes: hear(peer(), script_.take(script_.number(1) % 48)); break;
            case advance: matcher_.advance(script_.number(1) % 4 != 0); break;
            case told: peers_.hear(peer(), script_.number(8)); break;
            case takes: peers_.take(script_.number(1) % 2 == 0); break;
            case loans: peers_.hold_loans(script_.number(1) % 2 == 0); break;
            case withdraw:
                if (!receives_.empty()) matcher_.withdraw(*receives_[script_.number(1) % receives_.size()]);
                break;
            }
            check();
        }
        peers_.take(true);
        peers_.hold_loans(false);
        while (matcher_.advance()) check();
    }

  private:
    int peer() { return 1 + static_cast<int>(script_.number(1) % (num_ranks - 1)); }

    void post(bool sends) {
        const std::uint64_t how = script_.number(1);
        Message message{.sends = sends,
                        .peer = peer(),
                        .tag = how % 4,
                        .scope = static_cast<Scope>(how / 4 % 3),
                        .dtype = static_cast<Dtype>(script_.number(1) % num_dtypes)};
        message.num_bytes = script_.length(300'000) / size_of(message.dtype) * size_of(message.dtype);
        if (!sends && how >= 200) message.tag.reset();
        if (!sends && how >= 220) message.peer = any_source;
        memory_.push_back(
            std::make_unique_for_overwrite<std::byte[]>(message.num_bytes)); // sanitizers see what goes beyond
        message.data = memory_.back().get();
        const auto exchange = std::make_shared<Exchange>(message);
        if (!sends) receives_.push_back(exchange);
        if (!sends && how % 2 == 0 && matcher_.may_receive_at_once(*exchange) && matcher_.receive_at_once(*exchange))
            return;
        matcher_.post(exchange);
    }

    /// A frame with the header of a message, and so many bytes of it.
    void hear_message() {
        const int from = peer();
        Header header;
        const std::uint64_t kind = script_.number(1), about = script_.number(1);
        header.kind = static_cast<std::uint8_t>(kind < 250 ? kind % 4 : kind);
        header.scope = static_cast<std::uint8_t>(about % 4);
        header.dtype = static_cast<std::uint8_t>(script_.number(1));
        header.tag = about < 250 ? about / 4 % 4 : script_.number(8);
        header.number = static_cast<std::uint32_t>(script_.number(1));
        header.num_bytes = about < 250 ? script_.length(300'000) : script_.number(8);
        const std::size_t follow = script_.number(1) < 200 ? header.num_bytes : script_.length(piece_bytes);
        std::vector<std::byte> all(sizeof header + std::min(follow, piece_bytes), std::byte{7});
        std::memcpy(all.data(), &header, sizeof header);
        hear(from, all);
    }

    void hear_filling() {
        const int from = peer();
        hear(from, std::vector<std::byte>(script_.length(piece_bytes), std::byte{9}));
    }

    void hear(int from, Bytes payload) {
        const std::uint32_t tag = script_.number(1) < 253 ? right_tag : static_cast<std::uint32_t>(script_.number(4));
        const FrameHeader header{.tag = tag, .num_bytes = static_cast<std::uint32_t>(payload.size())};
        Wire &wire = Wire::of(from);
        if (!wire.has_room(header.num_in_all())) return;
        wire.send(std::as_bytes(std::span(&header, 1)));
        wire.send(payload);
        wire.send_filling(header.num_padding());
        wire.arrive(header.num_in_all() - (script_.number(1) % 8 == 7 ? script_.number(1) : 0));
    }

    /// A peer fills only so much memory that nobody asked it to.
    void check() const {
        HOLDS(matcher_.num_kept_bytes() <= (num_ranks - 1) * 2 * Matcher::max_unmatched * short_bytes);
    }

    Script script_;
    Peers peers_;
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    std::vector<std::shared_ptr<Exchange>> receives_;
    Matcher matcher_{peers_, Profile{}, 0, num_ranks, epoch};
};

/// hocket.runtime.failures finds words for it.
void check_has_words(const Failure &failure) {
    HOLDS(failure.cause == Cause::internal || failure.cause == Cause::mismatch);
    for (const auto &[rank, call] : failure.calls) {
        HOLDS(rank == 0 && call.root > 0 && call.root < num_ranks);
        HOLDS(call.dtype >= 0 && call.dtype < static_cast<int>(num_dtypes));
        HOLDS(call.op >= 0 && call.op < static_cast<int>(num_dtypes)); // the other end's type
    }
}

} // namespace

void fuzz_messages(Bytes input) {
    Conversation conversation(input);
    try {
        conversation.go_on();
    } catch (const Failure &failure) { check_has_words(failure); }
}

} // namespace hocket::fuzz
