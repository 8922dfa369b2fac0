// The control page: what the members of a communicator write down about themselves, where all others can read it
// whatever the algorithm does. It lies at the start of each member's endpoint.
#pragma once

#include "base/error.h"
#include "base/system.h"
#include "base/types.h"

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <string_view>

namespace hocket {

/// A Fingerprint in shared memory. `sequence` is 0 while the owner writes.
class CallRecord {
  public:
    void write(const Fingerprint &call);
    std::optional<Fingerprint> read() const;

  private:
    std::atomic<std::uint64_t> sequence_;
    std::atomic<std::uint64_t> count_, schedule_, detail_, kind_dtype_, op_root_;
};

/// Where the program makes a call, "file:line", in shared memory; of a long one the end. `sequence` is 0 while the
/// owner writes.
class SiteRecord {
  public:
    void write(std::uint64_t sequence, std::string_view site);
    /// That of the call of this number; "" where it is not here.
    std::string read(std::uint64_t sequence) const;

  private:
    static constexpr std::size_t num_words = 15;
    std::atomic<std::uint64_t> sequence_;
    std::array<std::atomic<std::uint64_t>, num_words> words_; // text, then zeros
};

/// Why a communicator can only be closed. The first writer wins; only the page of member 0 is used.
struct AbortRecord {
    static constexpr std::uint32_t none = 0, ready = 1, writing = 2; // writing + member
    static constexpr std::size_t max_members = 1024, max_text = 240;

    std::atomic<std::uint32_t> state;
    // The rest is written by the one who moved `state` to `writing`, and read once it is `ready`.
    std::int32_t cause;
    std::int32_t rank;
    std::uint64_t sequence;
    double seconds;
    std::array<std::uint64_t, max_members / 64> missing;
    std::array<char, max_text> text;
};

struct ControlPage {
    static constexpr std::size_t history = 128; // calls that are remembered: more than a channel holds messages
    static constexpr std::size_t num_sites = 16;
    static constexpr std::size_t lead = history / 2; // nobody makes more calls than these before all have followed
    // closing: the owner sends nothing more, and waits for those that are behind, or have not read all.
    static constexpr std::uint32_t open = 0, closing = 1, closed = 2;

    // Written by anybody, read by the owner whenever it waits.
    alignas(cache_line) std::atomic<std::uint32_t> alarm; // grows with each piece of bad news
    std::atomic<std::uint32_t> bell;                      // grows when the sleeping owner shall look again
    std::atomic<std::uint32_t> sleeping;                  // the owner's sleeping threads: partner of every store that
                                                          // they wait for; a bell wakes all

    // Written by the owner so rarely that they stay in the caches of all, which read them with each message.
    std::atomic<std::uint32_t> generation; // grows when the page is renewed
    std::atomic<std::uint32_t> state;

    // Written by the owner with each call.
    alignas(cache_line) std::atomic<std::uint64_t> in_call; // the number of the one in which it may read what others
                                                            // have lent for it, else 0; partner of `alarm`
    std::atomic<std::uint64_t> in_messages;                 // the same, for messages: 1 or 0
    std::atomic<std::int32_t> process;            // its id, by which others can ask the system whether it is stopped
    std::atomic<std::uint64_t> process_namespace; // in which that id counts
    std::atomic<std::uint64_t> last_call;         // the number of the last one in `calls`
    std::atomic<std::uint64_t> gave_up; // the number of the call at which the owner failed, or with which its abort
                                        // began; 0 while there is none
    // Once it has waited for long: for which member, from 1, else 0; and in which call, or 0 for a message.
    std::atomic<std::int32_t> waits_for;
    std::atomic<std::uint64_t> waits_in;
    alignas(cache_line) std::array<CallRecord, history> calls;
    /// Of all calls up to number n * lead, at n modulo their number: who has equal ones need not compare the records.
    alignas(cache_line) std::array<std::atomic<std::uint64_t>, 4> digests;

    /// Of the last calls, so far as they ran Python code: number n at n modulo their number.
    alignas(cache_line) std::array<SiteRecord, num_sites> sites;

    alignas(cache_line) AbortRecord abort;

    /// For another communicator, after all members have left the old one. Stale alarms may come in between, and a
    /// thread may still be about to wake: what they count goes on.
    void renew();

    /// What was first counts. Before an alarm.
    void give_up_at(std::uint64_t call) {
        std::uint64_t none = 0;
        gave_up.compare_exchange_strong(none, call, std::memory_order_seq_cst);
    }

    /// After a sequentially consistent store that the owner may be waiting for, or a store and such a fence.
    void ring() {
        if (sleeping.load(std::memory_order_seq_cst) == 0) return;
        bell.fetch_add(1, std::memory_order_seq_cst);
        futex_wake(bell);
    }

    void raise_alarm() {
        alarm.fetch_add(1, std::memory_order_seq_cst);
        ring();
    }
};

} // namespace hocket
