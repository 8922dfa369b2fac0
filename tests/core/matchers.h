// Matchers of all ranks in one thread, over each transport.
#pragma once

#include "messages/match.h"
#include "transport/byte_stream.h"
#include "world.h"

#include <memory>
#include <numeric>
#include <vector>

namespace hocket::test {

/// The last two: processes that may attach to each other, and that share cores or have one each.
enum class Over { bytes, threads, processes, crowded, apart };

inline constexpr Over all_transports[] = {Over::bytes, Over::threads, Over::processes, Over::crowded, Over::apart};

/// Bytes that show their source.
inline std::vector<std::byte> content(std::size_t number, std::size_t num_bytes) {
    std::vector<std::byte> bytes(num_bytes);
    for (std::size_t i = 0; i < num_bytes; ++i) {
        bytes[i] = static_cast<std::byte>(i < 4 ? number >> 8 * i : (number * 31 + i * 7 + i / 251) & 0xff);
    }
    return bytes;
}

/// Passes the required methods on to another transport; the rest keeps its default unless a test overrides it.
class Relay : public Transport {
  public:
    explicit Relay(Transport &inner) : inner_(inner) {}

    Reach reach(std::span<const int>) const override { return {.is_stream = true}; }
    Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) override {
        return inner_.post(peers, bytes, tag, how);
    }
    std::uint64_t posted(int peer) const override { return inner_.posted(peer); }
    std::uint64_t released(int peer) const override { return inner_.released(peer); }
    View view(int peer) const override { return inner_.view(peer); }
    void release(int peer, std::size_t num_bytes) override { inner_.release(peer, num_bytes); }
    void tell(int peer, std::uint64_t number) override { inner_.tell(peer, number); }
    std::uint64_t told(int peer) const override { return inner_.told(peer); }
    void flush() override { inner_.flush(); }

  private:
    Transport &inner_;
};

/// The matchers of all ranks.
struct Machines {
    Machines(int num_ranks, Over over, std::optional<Profile> pinned = {})
        : profile(pinned.value_or(measured(over == Over::crowded))) {
        const auto size = static_cast<std::size_t>(num_ranks);
        if (over == Over::bytes) {
            const auto streams = std::make_shared<ByteStreams>(num_ranks);
            for (int rank = 0; rank < num_ranks; ++rank) {
                transports.push_back(std::make_unique<ByteStreamTransport>(streams, rank));
            }
        } else {
            const bool attaches = over == Over::crowded || over == Over::apart;
            world = std::make_unique<World>(num_ranks, WorldOptions{.spin = over != Over::crowded,
                                                                    .as_processes = over != Over::threads,
                                                                    .may_attach = attaches,
                                                                    .profile = profile});
            std::vector<std::size_t> offsets(size);
            std::vector<int> members(size);
            std::iota(members.begin(), members.end(), 0);
            for (int rank : members) {
                offsets[static_cast<std::size_t>(rank)] = (*world)[rank].context->add_endpoint(
                    Endpoint::committed_bytes(num_ranks), Endpoint::reserved_bytes(num_ranks));
            }
            for (int rank : members) {
                transports.push_back(
                    std::make_unique<ShmTransport>(*(*world)[rank].context, members, rank, offsets, Lane::messages));
            }
        }
        for (int rank = 0; rank < num_ranks; ++rank) {
            matchers.push_back(
                std::make_unique<Matcher>(*transports[static_cast<std::size_t>(rank)], profile, rank, num_ranks));
        }
    }

    Matcher &operator[](int rank) { return *matchers[static_cast<std::size_t>(rank)]; }

    /// Replaces a rank's matcher by one over another transport.
    void replace(int rank, Transport &transport) {
        auto &matcher = matchers[static_cast<std::size_t>(rank)];
        matcher = std::make_unique<Matcher>(transport, profile, rank, static_cast<int>(matchers.size()));
    }

    std::shared_ptr<Exchange> send(int rank, int peer, std::uint64_t tag, std::vector<std::byte> &bytes,
                                   Dtype dtype = Dtype::uint8) {
        return post(
            rank,
            {.sends = true, .peer = peer, .tag = tag, .dtype = dtype, .data = bytes.data(), .num_bytes = bytes.size()});
    }
    std::shared_ptr<Exchange> receive(int rank, int peer, std::optional<std::uint64_t> tag,
                                      std::vector<std::byte> &bytes, Dtype dtype = Dtype::uint8) {
        return post(rank, {.peer = peer, .tag = tag, .dtype = dtype, .data = bytes.data(), .num_bytes = bytes.size()});
    }
    /// at_once: receives a message that has arrived, if that is possible.
    std::shared_ptr<Exchange> post(int rank, const Message &message, bool at_once = false) {
        auto exchange = std::make_shared<Exchange>(message);
        Matcher &matcher = (*this)[rank];
        const bool may_be = at_once && !message.sends && matcher.may_receive_at_once(*exchange);
        if (!may_be || !matcher.has_come(*exchange) || !matcher.receive_at_once(*exchange)) matcher.post(exchange);
        return exchange;
    }

    /// Advances all until nothing moves any more.
    void settle() {
        for (bool moved = true; moved;) {
            moved = false;
            for (const auto &matcher : matchers) moved = matcher->advance() || moved;
        }
    }

    Profile profile;
    std::unique_ptr<World> world;
    std::vector<std::unique_ptr<Transport>> transports;
    std::vector<std::unique_ptr<Matcher>> matchers;
};

} // namespace hocket::test
