// How a communicator ends waits that cannot succeed: what members have written down about calls, deaths and failures.

#include "communicator/communicator.h"

#include <algorithm>
#include <ranges>
#include <sched.h>

namespace hocket {

using namespace std::chrono_literals;

constexpr auto comers_time = 100ms; // for members to make a call that fails anyway
constexpr auto news_time = 1s;      // for what a member on another host has called to be known here

void Communicator::abort(const std::string &reason, bool only_later) {
    queue_.check_here();
    Failure failure(Cause::aborted, rank(), reason);
    const std::scoped_lock lock(queue_->mutex); // another thread may be closing
    if (queue_->left) return;
    const auto next_or_present = [&] { // read in this order, as one may begin or end meanwhile
        const std::uint64_t next = members_.last_call(rank()) + 1,
                            present = own().in_call.load(std::memory_order_seq_cst);
        return present != 0 ? present : next;
    };
    if (only_later) failure.sequence = next_or_present();
    members_.record(failure);
    // Where a later call's failure was written down first, that stays the reason, but concerns this rank's calls from
    // here on too.
    own().give_up_at(next_or_present());
    members_.alarm_all();
}

/// Looks at all that peers have written down. Throws when this call, or the one so many `ahead`, cannot, or shall not,
/// succeed.
void Communicator::examine(bool waiting, std::uint64_t ahead) {
    seen_alarm_ = own().alarm.load(std::memory_order_seq_cst);
    if (auto recorded = concerning_failure(sequence_ + ahead)) {
        failure_ = *recorded;
        throw *recorded;
    }
    if (const auto death = members_.find_death(sequence_)) fail(*death);
    if (const auto mismatch = find_mismatch()) fail(*mismatch);
    if (!waiting) return;
    const auto awaited = executor_->waiting_for();
    for (int peer : awaited) {
        if (!members_.has_closed(peer) || carrier().is_coming(peer)) continue;
        // All that it sent before it closed is visible by now: is it still waited for?
        const auto still = executor_->waiting_for();
        if (std::ranges::find(still, peer) == still.end()) continue;
        fail_at_closed(peer, sequence_);
    }
    look_for_lost(awaited);
}

/// Fails where bytes to or from one of them may be lost, though it lives: they come no other way.
void Communicator::look_for_lost(std::span<const int> awaited) {
    const auto is_broken = [this](int member) { return carrier().is_broken(member); };
    if (const auto lost = members_.find_lost(awaited, is_broken, sequence_, broken_since_)) fail(*lost);
}

/// A member has closed and sends nothing more. The reason is a difference, if it called something else first: that call
/// may have come after this rank looked for one.
void Communicator::fail_at_closed(int member, std::uint64_t sequence) {
    if (const auto mismatch = find_mismatch()) fail(*mismatch);
    Failure failure =
        closed_failure(member, sequence, members_.name_of(rank()) + " still waits for it" + does_each_match);
    await_comers(sequence);
    if (const auto mismatch = find_mismatch()) fail(*mismatch); // of one that has come
    for (int one = 0; one < size(); ++one) {
        if (const auto call = members_.call_of(one, sequence)) failure.calls[one] = *call;
        else if (one != member && members_.has_closed(one)) failure.missing.push_back(one);
    }
    if (failure.calls.contains(member)) failure.calls.clear(); // it has made the call: nobody knows what it lacks
    fail(failure);
}

/// Before the words for a failure of this call are found, which then name all members that are about to make it.
void Communicator::await_comers(std::uint64_t sequence) const {
    const auto limit = Clock::now() + comers_time;
    members_.ask_hosts();
    const auto is_coming = [this](int member) { return !members_.has_closed(member) && !members_.is_dead(member); };
    while (Clock::now() < limit && !members_.recorded_failure() &&
           std::ranges::any_of(members_.behind(sequence), is_coming))
        sched_yield();
}

/// Compares the last calls of this rank with what the others called under the same numbers.
std::optional<Failure> Communicator::find_mismatch() const {
    constexpr std::uint64_t num_calls = ControlPage::history;
    const std::uint64_t oldest = sequence_ >= num_calls ? sequence_ - num_calls + 1 : 1;
    for (std::uint64_t sequence = oldest; sequence <= sequence_; ++sequence) {
        const auto mine = members_.call_of(rank(), sequence);
        const auto differs = [&](int member) {
            const auto theirs = members_.call_of(member, sequence);
            return theirs && mine && *theirs != *mine;
        };
        if (std::ranges::none_of(std::views::iota(0, size()), differs)) continue;
        await_comers(sequence);
        Failure failure(Cause::mismatch);
        failure.sequence = sequence;
        for (int member = 0; member < size(); ++member) {
            if (const auto theirs = members_.call_of(member, sequence)) failure.calls[member] = *theirs;
        }
        return failure;
    }
    return std::nullopt;
}

/// A message of another call has come, or another digest is there: so the two ranks differ, though the records may not
/// reach back to where they began to.
void Communicator::fail_at_difference_to(int peer) {
    const auto limit = Clock::now() + news_time;
    members_.ask_hosts();
    do {
        if (const auto mismatch = find_mismatch()) fail(*mismatch);
        sched_yield();
    } while (members_.is_elsewhere(peer) && !members_.recorded_failure() && Clock::now() < limit);
    Failure failure(Cause::mismatch);
    failure.sequence = sequence_;
    for (int member : {rank(), peer}) {
        if (const auto call = members_.call_of(member, members_.last_call(member))) failure.calls[member] = *call;
    }
    fail(failure);
}

/// Only the two ranks know how much one sends to the other, so only they are told of.
void Communicator::fail_at_size(const Call &call, const ForeignSize &size) {
    if (const auto mismatch = find_mismatch()) fail(*mismatch);
    Failure failure(Cause::mismatch, -1,
                    "for the block from " + members_.name_of(size.peer) + " to " + members_.name_of(rank()));
    failure.sequence = sequence_;
    failure.calls[rank()] = failure.calls[size.peer] = call.fingerprint;
    failure.calls[rank()].sequence = failure.calls[size.peer].sequence = sequence_;
    failure.calls[rank()].count = size.expected;
    failure.calls[size.peer].count = size.found;
    fail(failure);
}

void Communicator::fail(const Failure &failure) {
    failure_ = members_.settle(failure); // another rank's reason may have been first
    throw *failure_;
}

/// The recorded failure, unless it belongs to a later call than that of this number: those that made it are done with
/// this one, which can still succeed. It cannot once a member has given up at it, whatever the reason was.
std::optional<Failure> Communicator::concerning_failure(std::uint64_t sequence) {
    auto recorded = members_.recorded_failure();
    if (!recorded || recorded->sequence <= sequence || members_.has_given_up(sequence)) return recorded;
    passed_over_ = true;
    return std::nullopt;
}

std::vector<int> Communicator::ranks_behind(std::uint64_t sequence) const {
    auto ranks = members_.behind(sequence);
    for (int &one : ranks) one = members_.rank_of(one);
    return ranks;
}

/// Who holds this call up: the members that have not made it; or else those whose processes are stopped, as along a
/// chain most wait for one that has come and waits itself; or else those that this rank waits for.
std::vector<int> Communicator::missing() const {
    auto members = members_.behind(sequence_);
    if (members.empty()) members = members_.stopped();
    return members.empty() ? executor_->waiting_for() : members;
}

/// Before a record is written over: all have come so far that each call is compared by whoever makes it last. Few wait
/// here: the messages of a call keep ranks closer together.
void Communicator::await_followers(const Call &call, const Hook &interrupted, const Hook &before_wait) {
    const auto start = Clock::now();
    auto pause = std::chrono::microseconds(50);
    for (int member = 0; member < size(); ++member) {
        const auto it_follows = [&] { return follows(member); };
        if (it_follows()) continue;
        before_wait();
        Patience patience = patience_of(spin_);
        while (!patience.try_until(it_follows)) {
            if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_ || passed_over_) examine(false, 1);
            if (members_.has_closed(member) && !it_follows()) fail_at_closed(member, sequence_ + 1);
            if (Clock::now() - start >= call.timeout) {
                Failure failure(Cause::timeout, rank());
                failure.sequence = sequence_ + 1;
                failure.seconds = std::chrono::duration<double>(call.timeout).count();
                failure.missing = members_.behind(sequence_ + 1 - ControlPage::lead);
                fail(failure);
            }
            messages_.help(Clock::now(), false);
            members_.ask_hosts();
            std::this_thread::sleep_for(pause);
            pause = std::min<std::chrono::microseconds>(pause * 2, 10ms);
            interrupted();
        }
    }
    if (sequence_ < 2 * ControlPage::lead) return;
    // All have come to the call of this number, and their records reach back behind it for as long as none goes on.
    const std::uint64_t common = sequence_ - ControlPage::lead;
    const std::uint64_t mine = members_.digest_at(rank(), common);
    for (int member = 0; member < size(); ++member) {
        if (members_.last_call(member) < common) continue; // on another host, whose news are on their way
        if (members_.digest_at(member, common) != mine) fail_at_difference_to(member);
    }
}

/// So long a rank that closes waits for members that do not read what it has sent through connections.
static constexpr std::chrono::seconds delivery_time{60};

/// A root or a sender may be ahead of the others. It leaves when they have made its last call too and, unless that was
/// another one, read what it has sent, which they may find too long or too short.
void Communicator::await_members(const std::function<void()> &interrupted) {
    const auto start = Clock::now();
    auto pause = std::chrono::microseconds(50);
    bool told = false;
    const auto await = [&](std::chrono::nanoseconds timeout, const std::function<bool(int member)> &is_behind) {
        const auto limit = Clock::now() + timeout;
        const auto is_awaited = [&](int member) {
            return is_behind(member) && !members_.is_dead(member) && !members_.has_closed(member);
        };
        for (int member = 0; member < size(); ++member) {
            while (is_awaited(member) && !members_.recorded_failure() && Clock::now() < limit) {
                if (!told && Clock::now() - start >= stall_time) {
                    told = true;
                    members_.tell_stall(stall_time, "close", {member}, sequence_);
                }
                const auto is_broken = [this](int one) { return carrier().is_broken(one) || messages_.is_broken(one); };
                if (const auto lost = members_.find_lost({&member, 1}, is_broken, sequence_, broken_since_))
                    members_.settle(*lost);
                members_.ask_hosts();
                std::this_thread::sleep_for(pause);
                pause = std::min<std::chrono::microseconds>(pause * 2, 10ms);
                interrupted();
            }
        }
    };
    await(last_timeout_, [this](int member) { return members_.last_call(member) < sequence_; });
    if (find_mismatch()) return;
    const Transport &carrier = channels_.carrier();
    await(last_timeout_, [&](int member) { return carrier.released(member) < carrier.posted(member); });
    await(delivery_time,
          [this](int member) { return !channels_.has_delivered(member) || !messages_.has_delivered(member); });
}

} // namespace hocket
