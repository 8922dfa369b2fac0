// How a communicator ends waits that cannot succeed: what members have written down about calls, deaths and failures.

#include "communicator.h"

#include <algorithm>
#include <cstring>
#include <sched.h>

namespace hocket {
namespace {

using namespace std::chrono_literals;

constexpr auto writer_time = 200ms; // for another member to write its reason
constexpr auto reader_time = 500ms; // for another process to notice a failure before it counts as stopped

} // namespace

void Communicator::abort(const std::string &reason) {
    check_usable();
    Failure failure;
    failure.cause = Cause::aborted;
    failure.rank = rank_;
    failure.text = reason;
    record(failure);
}

/// Looks at all that peers have written down. Throws when this call cannot, or shall not, succeed.
void Communicator::examine(bool waiting) {
    seen_alarm_ = own().alarm.load(std::memory_order_seq_cst);
    if (auto recorded = concerning_failure()) {
        failure_ = *recorded;
        throw *recorded;
    }
    for (int member = 0; member < size(); ++member) {
        if (!context_->is_dead(members_[static_cast<std::size_t>(member)])) continue;
        // One that had closed before has left in good order, and all that it sent is there.
        if (transport_.control(member).state.load(std::memory_order_seq_cst) == ControlPage::closed) continue;
        Failure failure;
        failure.cause = Cause::died;
        failure.rank = member;
        failure.sequence = sequence_;
        fail(failure);
    }
    if (const auto mismatch = find_mismatch()) fail(*mismatch);
    if (!waiting) return;
    const auto has_closed = [this](int peer) {
        return transport_.control(peer).state.load(std::memory_order_seq_cst) == ControlPage::closed;
    };
    for (int peer : executor_->waiting_for()) {
        if (!has_closed(peer)) continue;
        // What it sent before it closed is visible by now: is it still waited for?
        const auto still = executor_->waiting_for();
        if (std::ranges::find(still, peer) == still.end()) continue;
        Failure failure;
        failure.cause = Cause::aborted;
        failure.rank = peer;
        failure.sequence = sequence_;
        failure.text = "it closed its communicator";
        fail(failure);
    }
}

/// Compares the last calls of this rank with what the others called under the same numbers.
std::optional<Failure> Communicator::find_mismatch(std::uint64_t num_calls) const {
    const std::uint64_t oldest = sequence_ >= num_calls ? sequence_ - num_calls + 1 : 1;
    for (std::uint64_t sequence = oldest; sequence <= sequence_; ++sequence) {
        const auto call_of = [&](int member) -> std::optional<Fingerprint> {
            const auto call = transport_.control(member).calls[sequence % ControlPage::history].read();
            return call && call->sequence == sequence ? call : std::nullopt;
        };
        const auto mine = call_of(rank_);
        const auto differs = [&](int member) {
            const auto theirs = call_of(member);
            return theirs && mine && *theirs != *mine;
        };
        bool found = false;
        for (int member = 0; member < size() && !found; ++member) found = differs(member);
        if (!found) continue;
        Failure failure;
        for (int member = 0; member < size(); ++member) {
            if (const auto theirs = call_of(member)) failure.calls[member] = *theirs;
        }
        failure.cause = Cause::mismatch;
        failure.sequence = sequence;
        return failure;
    }
    return std::nullopt;
}

/// A message of another call has come, so the two differ, though the records may not reach back to where they began to.
void Communicator::fail_at_message_of(int peer) {
    if (const auto mismatch = find_mismatch()) fail(*mismatch);
    Failure failure;
    failure.cause = Cause::mismatch;
    failure.sequence = sequence_;
    for (int member : {rank_, peer}) {
        for (const CallRecord &record : transport_.control(member).calls) {
            const auto call = record.read();
            if (call && call->sequence == last_call(member)) failure.calls[member] = *call;
        }
    }
    fail(failure);
}

void Communicator::fail(const Failure &failure) {
    record(failure);
    failure_ = recorded_failure().value_or(failure); // another rank's reason may have been first
    throw *failure_;
}

void Communicator::alarm_all() const {
    for (int member = 0; member < size(); ++member) transport_.control(member).raise_alarm();
}

/// Writes the reason where all members read it, unless one is there already.
void Communicator::record(const Failure &failure) {
    AbortRecord &record = transport_.control(0).abort;
    const auto limit = Clock::now() + writer_time;
    const auto me = AbortRecord::writing + static_cast<std::uint32_t>(rank_);
    std::uint32_t state = AbortRecord::none;
    while (!record.state.compare_exchange_strong(state, me, std::memory_order_acq_rel)) {
        if (state == AbortRecord::ready) return;
        // Another member is writing. It is about to finish, or has died at it; if it was stopped, it will do so later.
        const int writer = static_cast<int>(state - AbortRecord::writing);
        if (!context_->is_dead(members_[static_cast<std::size_t>(writer)])) {
            if (Clock::now() >= limit) return;
            sched_yield();
            state = AbortRecord::none;
        }
    }
    record.cause = static_cast<std::int32_t>(
        failure.cause == Cause::resource || failure.cause == Cause::internal ? Cause::aborted : failure.cause);
    record.rank = failure.rank;
    record.sequence = failure.sequence;
    record.seconds = failure.seconds;
    record.missing.fill(0);
    for (int member : failure.missing)
        record.missing[static_cast<std::size_t>(member) / 64] |= std::uint64_t{1} << member % 64;
    std::size_t length = std::min(failure.text.size(), record.text.size() - 1);
    if (length < failure.text.size()) { // a cut must not go through a character
        while (length > 0 && (static_cast<unsigned char>(failure.text[length]) & 0xc0U) == 0x80U) --length;
    }
    record.text.fill('\0');
    std::memcpy(record.text.data(), failure.text.data(), length);
    for (int member = 0; member < size(); ++member) {
        const auto call = failure.calls.find(member);
        transport_.endpoint(0).aborted_calls()[static_cast<std::size_t>(member)] =
            call == failure.calls.end() ? Fingerprint{} : call->second;
    }
    record.state.store(AbortRecord::ready, std::memory_order_seq_cst);
    alarm_all();
}

std::optional<Failure> Communicator::recorded_failure() const {
    const AbortRecord &record = transport_.control(0).abort;
    if (record.state.load(std::memory_order_seq_cst) != AbortRecord::ready) return std::nullopt;
    Failure failure;
    failure.cause = static_cast<Cause>(record.cause);
    failure.rank = record.rank;
    failure.sequence = record.sequence;
    failure.seconds = record.seconds;
    failure.text = record.text.data();
    for (int member = 0; member < size(); ++member) {
        if ((record.missing[static_cast<std::size_t>(member) / 64] >> member % 64 & 1) != 0)
            failure.missing.push_back(member);
        const Fingerprint &call = transport_.endpoint(0).aborted_calls()[static_cast<std::size_t>(member)];
        if (call.sequence != 0) failure.calls[member] = call;
    }
    return failure;
}

/// The recorded failure, unless it belongs to a later call than this rank's: those that made it are done with this one,
/// which can still succeed. It cannot once a member has given up at it, whatever the reason was.
std::optional<Failure> Communicator::concerning_failure() {
    auto recorded = recorded_failure();
    if (!recorded || recorded->sequence <= sequence_) return recorded;
    for (int member = 0; member < size(); ++member) {
        const std::uint64_t call = transport_.control(member).gave_up.load(std::memory_order_seq_cst);
        if (call != 0 && call <= sequence_) return recorded;
    }
    passed_over_ = true;
    return std::nullopt;
}

/// The number of the last call that the member has made.
std::uint64_t Communicator::last_call(int member) const {
    return transport_.control(member).last_call.load(std::memory_order_acquire);
}

std::vector<int> Communicator::behind(std::uint64_t sequence) const {
    std::vector<int> members;
    for (int member = 0; member < size(); ++member) {
        if (last_call(member) < sequence) members.push_back(member);
    }
    return members;
}

/// Who holds this call up: the members that have not made it, or else those that this rank waits for. Along a chain
/// most wait for one that has come and waits itself.
std::vector<int> Communicator::missing() const {
    const auto members = behind(sequence_);
    return members.empty() ? executor_->waiting_for() : members;
}

/// Before a record is written over: all have come so far that each call is compared by whoever makes it last. Few wait
/// here: the messages of a call keep ranks closer together.
void Communicator::await_followers(const Call &call, const std::function<void()> &interrupted) {
    const auto start = Clock::now();
    auto pause = std::chrono::microseconds(50);
    for (int member = 0; member < size(); ++member) {
        const auto follows = [&] { return last_call(member) + ControlPage::lead > sequence_; };
        while (!follows()) {
            if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_) examine(false);
            Failure failure;
            failure.sequence = sequence_ + 1;
            if (transport_.control(member).state.load(std::memory_order_seq_cst) == ControlPage::closed && !follows()) {
                failure.cause = Cause::aborted;
                failure.rank = member;
                failure.text = "it closed its communicator";
                fail(failure);
            }
            if (Clock::now() - start >= call.timeout) {
                failure.cause = Cause::timeout;
                failure.seconds = std::chrono::duration<double>(call.timeout).count();
                failure.missing = behind(sequence_ + 1 - ControlPage::lead);
                fail(failure);
            }
            std::this_thread::sleep_for(pause);
            pause = std::min<std::chrono::microseconds>(pause * 2, 10ms);
            interrupted();
        }
    }
    if (const auto mismatch = find_mismatch(ControlPage::lead)) fail(*mismatch);
}

/// After a failure: returns when no peer reads any longer what this rank has lent, so that its memory may go. A stopped
/// process is not waited for; when it goes on, it finds the failure at the end of its call.
void Communicator::await_readers() {
    own().in_call.store(0, std::memory_order_seq_cst);
    alarm_all(); // whoever has recorded the failure may not have come so far
    const auto limit = Clock::now() + reader_time;
    for (int member = 0; member < size(); ++member) {
        const int place = members_[static_cast<std::size_t>(member)];
        while (transport_.released(member) < transport_.posted(member) && !context_->is_dead(place) &&
               transport_.control(member).in_call.load(std::memory_order_seq_cst) != 0 &&
               (context_->shares_process(place) || Clock::now() < limit)) {
            sched_yield();
        }
    }
}

} // namespace hocket
