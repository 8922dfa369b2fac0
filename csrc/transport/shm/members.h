// What the members of a communicator write down about each other, beside all channels: deaths, alarms, and why it
// failed.
#pragma once

#include "base/waiting.h"
#include "transport/shm/shm.h"

#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace hocket {

/// One rank's view of all members. Thread-safe: calls and messages share it.
class Members {
  public:
    /// `ranks` are those of the members in the context. The transport, which leads to their endpoints, must outlive
    /// this.
    Members(std::shared_ptr<Context> context, std::vector<int> ranks, int rank, const ShmTransport &transport);

    int rank() const { return rank_; }
    int size() const { return static_cast<int>(ranks_.size()); }
    /// The rank of a member in the job, by which all messages name it.
    int rank_of(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
    std::string name_of(int member) const { return "rank " + std::to_string(rank_of(member)); }
    /// Of a failure, as this rank raises it: says so, and names ranks of the job instead of members.
    void address(Failure &failure) const;
    ControlPage &control(int member) const { return transport_.control(member); }
    ControlPage &own() const { return control(rank_); }
    bool is_dead(int member) const { return context_->is_dead(rank_of(member)); }
    /// Whether it sends nothing more; what it has sent is still there.
    bool has_closed(int member) const;
    /// The members whose processes are stopped, by a signal or a debugger, ascending.
    std::vector<int> stopped() const;

    /// A member that has died without closing before, as a failure at call `sequence`. One that had closed has left in
    /// good order, and all that it sent is there.
    std::optional<Failure> find_death(std::uint64_t sequence) const;

    /// Writes the reason where all members read it, unless one is there already, and raises the alarm of all.
    void record(const Failure &failure) const;
    std::optional<Failure> recorded_failure() const;
    /// Records a failure; what counts is the reason that was there first.
    Failure settle(const Failure &failure) const;
    void alarm_all() const;

    /// After a failure: returns when no member reads any longer what this rank has lent through `transport`, nor writes
    /// where it was let; a member shows by `reading` in which call it may. All was for the call of number `call`: a
    /// member that is in an earlier one finds the failure before it looks at that. Nor is a stopped process waited for;
    /// when it goes on, it finds the failure before it trusts what it has read, and ends the piece that it was writing,
    /// no other.
    void await_readers(const ShmTransport &transport, std::atomic<std::uint64_t> ControlPage::*reading,
                       std::uint64_t call) const;

    /// Says on standard error whom this rank waits for, and why in vain where that is `known`; else what is known of a
    /// circle of waits. `call`: the number of the one in which it waits, 0 for a message.
    void tell_stall(std::chrono::nanoseconds waited, const std::string &what, const std::vector<int> &members,
                    std::uint64_t call, const std::string &known = "") const;
    /// It waits for this message no longer.
    void note_stall_over() const { own().waits_for.store(0, std::memory_order_seq_cst); }
    /// Where this rank has waited for long, for one that waits for another and so on to this rank: that, in words, and
    /// what to do; else "".
    std::string circle() const;

    /// Of a call by one thread while another closes.
    Failure closed_here() const;

  private:
    bool is_stopped(int member) const;

    std::shared_ptr<Context> context_;
    std::vector<int> ranks_;
    int rank_;
    std::uint64_t namespace_ = process_namespace();
    const ShmTransport &transport_;
};

/// Of a member that has closed, by one that still needs it; `text` says what for.
Failure closed_failure(int member, std::uint64_t sequence, std::string text);
/// Ends such a text where nobody knows more.
inline constexpr const char *does_each_match = ": does every rank make the matching call?";

} // namespace hocket
