// The control page: what the members of a communicator write down about themselves, where all others can read it
// whatever the algorithm does. It lies at the start of each member's endpoint.
#pragma once

#include "base/error.h"
#include "base/system.h"
#include "base/types.h"

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace hocket {

/// A line of the program that makes calls, as "file:line", and its number among those of the process, from 1.
struct Site {
    std::uint32_t number = 0;
    std::string text;
};

/// Which Site a call has; number 0: nobody knows.
struct SiteOfCall {
    std::uint32_t number = 0;
    bool is_repeated = false; // an earlier call like it was made there
};

/// A Fingerprint and its site in shared memory. `sequence` is 0 while the owner writes.
class CallRecord {
  public:
    void write(const Fingerprint &call, SiteOfCall site);
    /// The call of this number, if it is here.
    std::optional<std::pair<Fingerprint, SiteOfCall>> read(std::uint64_t sequence) const;

    /// For a mirror on another host: all of it, if it is the call of this number.
    using Words = std::array<std::uint64_t, 6>;
    std::optional<Words> words(std::uint64_t sequence) const;
    void mirror(const Words &words);

  private:
    // Numbers of kinds and dtypes are small: the site has room beside them, and costs no cache line of its own.
    std::atomic<std::uint64_t> sequence_;
    std::atomic<std::uint64_t> count_, schedule_, detail_, site_kind_dtype_, op_root_;
};

/// A Site in shared memory; of a long text the end. The number is 0 while the owner writes.
class SiteRecord {
  public:
    bool has(std::uint32_t number) const { return number_.load(std::memory_order_relaxed) == number; }
    void write(const Site &site);
    /// The text of this number; "" where it is not here.
    std::string read(std::uint32_t number) const;
    std::uint32_t number() const { return static_cast<std::uint32_t>(number_.load(std::memory_order_acquire)); }

  private:
    static constexpr std::size_t num_words = 15;
    std::atomic<std::uint64_t> number_;
    std::array<std::atomic<std::uint64_t>, num_words> words_; // text, then zeros
};

/// What the program of a rank says of itself in one word, whose meaning is the program's, and when, in shared memory.
/// Notes lie in two places by turns: an owner that is stopped while it writes leaves its last one.
class ProgressRecord {
  public:
    struct Note {
        std::int64_t at = 0; // nanoseconds of Clock, which all processes of a host share; 0: there is none
        std::uint64_t word = 0;
    };
    /// One thread at a time may do so. `age`: of a note that was written elsewhere, not negative.
    void write(std::uint64_t word, std::chrono::nanoseconds age = {});
    Note read() const;

  private:
    struct Place {
        std::atomic<std::int64_t> at; // that of the later note is greater; 0 while the owner writes
        std::atomic<std::uint64_t> word;
    };
    std::array<Place, 2> places_;
};

/// Why a communicator can only be closed. All look at the members' pages in order, and the first page that is not
/// passed has the reason. It belongs to the lowest member that lived when the reason was written. A passed page stays
/// passed, and the first writer wins. So all find the same reason, whenever they learned of a death.
///
/// Members on several hosts have no page in common. Each of them proposes its reason on its own page. Rank 0's host
/// decides which one was first, and the leader of each host writes that on the pages there: it takes a page that is
/// `none` or `proposed`, and gives it back `ready`.
struct AbortRecord {
    static constexpr std::size_t max_members = 1024, max_text = 240;
    static constexpr std::uint32_t none = 0, ready = 1, passed = 2, proposed = 3, writing = 4; // writing + member
    static constexpr std::uint32_t agent = writing + max_members; // the leader of this host

    std::atomic<std::uint32_t> state;
    std::atomic<std::int64_t> proposed_at; // nanoseconds of the owner's clock; 0: it has proposed nothing
    // The rest is written by the one who moved `state` to `writing`, and read once it is `ready`.
    std::int32_t cause;
    std::int32_t rank;
    std::uint64_t sequence;
    double seconds;
    std::array<std::uint64_t, max_members / 64> missing;
    std::array<char, max_text> text;
};

struct ControlPage {
    static constexpr std::size_t history = 128;      // calls that are remembered: more than a channel holds messages
    static constexpr std::size_t num_sites = 16;     // lines of the program that are remembered
    static constexpr std::size_t lead = history / 2; // nobody makes more calls than these before all have followed
    // closing: the owner sends nothing more, and waits for those that are behind, or have not read all.
    // renewing: all members have left, and the next communicator has not begun.
    static constexpr std::uint32_t open = 0, closing = 1, closed = 2, renewing = 3;

    // Written by anybody, read by the owner whenever it waits.
    alignas(cache_line) std::atomic<std::uint32_t> alarm; // grows with each piece of bad news
    std::atomic<std::uint32_t> bell;                      // grows when the sleeping owner shall look again
    std::atomic<std::uint32_t> sleeping;                  // the owner's sleeping threads: partner of every store that
                                                          // they wait for; a bell wakes all

    // Written by the owner so rarely that they stay in the caches of all, which read them with each message.
    std::atomic<std::uint32_t> generation; // grows when the page is renewed
    std::atomic<std::uint32_t> state;
    // The name in the job of a communicator with members on several hosts; else 0.
    std::atomic<std::uint64_t> name;
    std::atomic<std::int32_t> num_members;
    std::atomic<std::uint32_t> is_stopped; // on a mirror: whether the owner's process was stopped when last told

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
    ProgressRecord progress; // it has room there, and costs no cache line of its own

    /// Where the program made its last calls: the site of number n at n modulo their number.
    alignas(cache_line) std::array<SiteRecord, num_sites> sites;

    alignas(cache_line) AbortRecord abort;

    /// For another communicator, after all members have left the old one. Stale alarms may come in between, and a
    /// thread may still be about to wake: what they count goes on. The leader of this host may look meanwhile: the
    /// generation grows last, so nothing that is left over seems to belong to the next communicator.
    void renew();
    /// All that belongs to one communicator, but the generation. The state is `renewing` from then on.
    void clear();
    /// Whether the owner's process is stopped, as far as a process in this namespace can ask.
    bool has_stopped_owner(std::uint64_t own_namespace) const;

    /// Of the owner. `site`: where the program makes the call, or, if it `is_repeated`, made an earlier one like it;
    /// null where nobody looked.
    void note_call(const Fingerprint &call, const Site *site, bool is_repeated) {
        SiteOfCall at;
        if (site != nullptr) {
            at = {site->number, is_repeated};
            SiteRecord &record = sites[at.number % num_sites];
            if (!record.has(at.number)) [[unlikely]]
                record.write(*site);
        }
        calls[call.sequence % history].write(call, at);
    }
    /// The digest of all calls up to this one. Digests of earlier calls are overwritten in time.
    std::atomic<std::uint64_t> &digest_at(std::uint64_t sequence) { return digests[sequence / lead % digests.size()]; }
    const std::atomic<std::uint64_t> &digest_at(std::uint64_t sequence) const {
        return digests[sequence / lead % digests.size()];
    }
    /// The call of this number, if it is remembered.
    std::optional<Fingerprint> call_of(std::uint64_t sequence) const;
    /// "file:line" of the call of this number, and ", repeated" if it was; "" where that is not known any more.
    std::string site_of(std::uint64_t sequence) const;

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

/// The owner of a page is about to sleep, while this stands. Whoever has stored something before it could see that is
/// seen by a look from now on; whoever stores later rings the bell, which ends the sleep.
class Sleeper {
  public:
    explicit Sleeper(ControlPage &page) : page_(page), bell_(page.bell.load(std::memory_order_seq_cst)) {
        page_.sleeping.fetch_add(1, std::memory_order_seq_cst);
    }
    Sleeper(const Sleeper &) = delete;
    Sleeper &operator=(const Sleeper &) = delete;
    ~Sleeper() { page_.sleeping.fetch_sub(1, std::memory_order_relaxed); }

    void sleep(std::chrono::nanoseconds limit) const {
        if (limit.count() > 0) futex_wait(page_.bell, bell_, limit);
    }

  private:
    ControlPage &page_;
    std::uint32_t bell_;
};

} // namespace hocket
