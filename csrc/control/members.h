// What the members of a communicator know of each other beside all channels, whatever those are: calls, deaths, alarms,
// and why it failed.
#pragma once

#include "base/waiting.h"
#include "control/control.h"
#include "control/guard.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hocket {

/// Where the others read what a member writes. If it is on another host, this is a mirror, which lags behind, and may
/// still show an earlier communicator.
struct Member {
    int rank; // in the job
    bool shares_process;
    const Presence &presence;
    ControlPage &page;
    std::span<Fingerprint> aborted_calls; // beside the page's abort record: of all members, sequence 0 where unknown
    std::optional<std::uint32_t> told_generation{}; // of the page, by a member on another host
    std::string host{};                             // its name, where ranks are on several
};

/// What a communicator with members on several hosts has: its name in the job, and the leader of this host, which
/// carries news of members from host to host.
struct Spanning {
    static constexpr std::uint64_t tells = 1, asks = std::uint64_t{1} << 32; // numbers for the bell
    std::uint64_t name = 0;
    int bell = -1; // the leader's, an eventfd
    const Presence &leader;
};

/// One rank's view of all members. Thread-safe: calls and messages share it.
class Members {
  public:
    /// The memory that `members` lead to must outlive this. `spanning`: if they are on several hosts.
    Members(std::vector<Member> members, int rank, const std::optional<Spanning> &spanning = std::nullopt);

    int rank() const { return rank_; }
    int size() const { return static_cast<int>(members_.size()); }
    /// The rank of a member in the job, by which all messages name it.
    int rank_of(int member) const { return at(member).rank; }
    std::string name_of(int member) const { return "rank " + std::to_string(rank_of(member)); }
    /// With its host, where members are on several.
    std::string place_of(int member) const;
    /// Makes a failure one that this rank raises: it names ranks of the job instead of members.
    void address(Failure &failure) const;
    ControlPage &own() const { return own_; }
    /// The generation of the lowest member's page: all members see the same number. It grows with each communicator
    /// that uses the page.
    std::uint32_t generation() const { return generations_.front(); }
    /// The part of it that every message carries: what is left over from an earlier communicator shows by it.
    std::uint8_t epoch() const { return static_cast<std::uint8_t>(generation()); }
    /// Tells, also once this is gone, whether all members have left this communicator, or died.
    std::function<bool()> have_all_left() const;

    /// The number of the last call that the member has made.
    std::uint64_t last_call(int member) const { return page_of(member).last_call.load(std::memory_order_acquire); }
    /// What it called under this number, as far as its records reach back.
    std::optional<Fingerprint> call_of(int member, std::uint64_t sequence) const {
        return page_of(member).call_of(sequence);
    }
    std::uint64_t digest_at(int member, std::uint64_t sequence) const {
        return page_of(member).digest_at(sequence).load(std::memory_order_relaxed);
    }
    /// The members that have not made the call of this number yet, ascending.
    std::vector<int> behind(std::uint64_t sequence) const;
    /// Whether a member has given up at this call, or before.
    bool has_given_up(std::uint64_t sequence) const;

    bool is_elsewhere(int member) const { return at(member).told_generation.has_value(); }
    bool is_dead(int member) const { return at(member).presence.is_dead() || is_cut_off(member); }
    /// Whether it may live, but this host hears no more of it.
    bool is_cut_off(int member) const { return at(member).presence.is_cut_off() || has_lost_leader(member); }
    /// Whether it sends nothing more; what it has sent is still there.
    bool has_closed(int member) const {
        const std::uint32_t state = page_of(member).state.load(std::memory_order_seq_cst);
        return state == ControlPage::closing || state == ControlPage::closed;
    }
    std::vector<int> closed() const;
    /// Members on other hosts get to know what this one has written. Nothing where all are on this host.
    void tell_hosts() const { ring_leader(Spanning::tells); }
    /// What members on other hosts have written comes here soon.
    void ask_hosts() const { ring_leader(Spanning::asks); }
    /// By member: what its program noted last, and how many seconds ago; 0 and infinity if nothing. Asks for what
    /// members on other hosts have noted, which is there a tenth of a second later; their seconds leave out how long it
    /// travels.
    std::vector<std::pair<std::uint64_t, double>> progress() const;
    /// The members whose processes are stopped, by a signal or a debugger, ascending.
    std::vector<int> stopped() const;

    /// A member that has died without closing before, as a failure at call `sequence`. One that had closed has left in
    /// good order, and all that it sent is there.
    std::optional<Failure> find_death(std::uint64_t sequence) const;

    /// The first of the members in `awaited` to which the way is broken though it has neither died nor left, as a
    /// failure at call `sequence`. That takes a while: a member that dies or leaves breaks the way first, and is then
    /// known to have done so. `since`: when it was first found; the caller keeps it while it waits for the same.
    std::optional<Failure> find_lost(std::span<const int> awaited, const std::function<bool(int member)> &is_broken,
                                     std::uint64_t sequence, Clock::time_point &since) const;

    /// Writes the reason where all members read it, unless one is there already, and raises the alarm of all.
    void record(const Failure &failure) const;
    /// Where members are on several hosts, and this rank has written a reason, this waits until it is known which one
    /// holds.
    std::optional<Failure> recorded_failure() const;
    /// Records a failure; what counts is the reason that was there first.
    Failure settle(const Failure &failure) const;
    void alarm_all() const;

    /// After a failure: returns when no member reads any longer what this rank has lent to it, nor writes where it was
    /// let. `withdraw`: none begins to write any more. `may_use`: of a member, whether it may still do either; it shows
    /// by `reading` in which call it may. All was for the call of number `call`: a member that is in an earlier one
    /// finds the failure before it looks at that. Nor is a stopped process waited for; when it goes on, it finds the
    /// failure before it trusts what it has read, and ends the piece that it was writing, no other.
    void await_readers(std::atomic<std::uint64_t> ControlPage::*reading, std::uint64_t call, const Hook &withdraw,
                       const std::function<bool(int member)> &may_use) const;

    /// Says on standard error whom this rank waits for, and why in vain where that is `known`; else what is known of a
    /// circle of waits. `call`: the number of the one in which it waits, 0 for a message.
    void tell_stall(std::chrono::nanoseconds waited, const std::string &what, const std::vector<int> &members,
                    std::uint64_t call, const std::string &known = "") const;
    /// It waits for this message no longer.
    void note_stall_over() const { own().waits_for.store(0, std::memory_order_seq_cst); }
    /// Where this rank has waited for long, for one that waits for another and so on to this rank: that, in words, and
    /// what to do; else "".
    std::string circle() const;

    /// The failure of a call by one thread while another thread closes.
    Failure closed_here() const;

  private:
    const Member &at(int member) const { return members_[static_cast<std::size_t>(member)]; }
    const ControlPage &page_of(int member) const;
    bool is_stopped(int member) const;
    /// Whether the leader that tells of this member is gone.
    bool has_lost_leader(int member) const {
        return is_elsewhere(member) && spanning_ && spanning_->leader.is_dead() && !at(member).presence.is_dead();
    }
    void ring_leader(std::uint64_t number) const;
    bool has_lost_writer(std::uint32_t state) const;
    std::optional<int> take_record() const;

    std::vector<Member> members_;
    int rank_;
    ControlPage &own_;
    std::optional<Spanning> spanning_;
    std::vector<int> homes_;                 // the members on whose pages a reason may be written
    std::vector<std::uint32_t> generations_; // of the pages
    std::uint64_t namespace_ = process_namespace();
};

/// The failure of a rank that still needs a member which has closed; `text` says what for.
Failure closed_failure(int member, std::uint64_t sequence, std::string text);
/// Ends such a text where nobody knows more.
inline constexpr const char *does_each_match = ": does every rank make the matching call?";

} // namespace hocket
