#include "communicator.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <sched.h>
#include <stdexcept>
#include <system_error>
#include <unistd.h>

namespace hocket {
namespace {

using namespace std::chrono_literals;

constexpr auto attention = 100ms; // between looks at signals, clocks and what peers have written down
constexpr auto spin_time = 200us;
constexpr auto stall_time = 5s;
constexpr auto reader_time = 500ms; // for peers to notice a failure, before a stopped one is not waited for any longer
constexpr unsigned max_yields = 1000;
constexpr unsigned polls_per_look = 64; // at the clock, while spinning

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

} // namespace

// Work ----------------------------------------------------------------------------------------------------------------

bool Work::wait(std::chrono::nanoseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return completed_; });
}

bool Work::is_completed() {
    const std::scoped_lock lock(mutex_);
    return completed_;
}

std::optional<Failure> Work::failure() {
    const std::scoped_lock lock(mutex_);
    return failure_;
}

void Work::finish(std::optional<Failure> failure) {
    const std::scoped_lock lock(mutex_);
    failure_ = std::move(failure);
    completed_ = true;
    changed_.notify_all();
}

// Life ----------------------------------------------------------------------------------------------------------------

Communicator::Communicator(std::shared_ptr<Context> context, std::vector<int> members, int rank,
                           std::span<const std::size_t> offsets, bool spin)
    : context_(std::move(context)), members_(std::move(members)), rank_(rank), spin_(spin),
      transport_(*context_, members_, rank, offsets) {
    if (members_.size() > AbortRecord::max_members) throw Failure::internal("a communicator has at most 1024 members");
}

Communicator::~Communicator() {
    try {
        close([] {});
    } catch (...) { // the peers have been told already, and a destructor has nobody to tell
    }
}

/// Of a call by one thread while another closes.
Failure Communicator::closed_here() const {
    Failure failure;
    failure.cause = Cause::aborted;
    failure.rank = failure.self = rank_;
    failure.text = "it closed its communicator";
    return failure;
}

void Communicator::check_usable() const {
    if (generation_ == fork_generation()) return;
    Failure failure;
    failure.cause = Cause::forked;
    throw failure;
}

void Communicator::abort(const std::string &reason) {
    check_usable();
    Failure failure;
    failure.cause = Cause::aborted;
    failure.rank = rank_;
    failure.text = reason;
    record(failure);
}

void Communicator::close(const std::function<void()> &interrupted) {
    if (generation_ != fork_generation()) { // a forked child: threads and locks are the parent's
        if (stream_.joinable()) stream_.detach();
        return;
    }
    {
        std::unique_lock lock(mutex_);
        if (closing_) return;
        closing_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !busy_ && queue_.empty(); });
    }
    if (stream_.joinable()) stream_.join();
    const auto leave = [this] {
        own().state.store(ControlPage::closed, std::memory_order_seq_cst);
        alarm_all();
    };
    try {
        if (!failure_) await_members(interrupted);
    } catch (...) {
        leave();
        throw;
    }
    if (const auto mismatch = find_mismatch()) record(*mismatch);
    auto failure = recorded_failure();
    leave();
    if (!failure || failure_) return; // this rank has raised it already
    failure->self = rank_;
    throw *failure;
}

/// The number of the last call that the member has made.
std::uint64_t Communicator::last_call(int member) const {
    std::uint64_t last = 0;
    for (const CallRecord &record : transport_.control(member).calls) {
        if (const auto call = record.read()) last = std::max(last, call->sequence);
    }
    return last;
}

/// A root or a sender may be ahead of the others. It leaves when they have made its last call too, or never will.
void Communicator::await_members(const std::function<void()> &interrupted) const {
    const auto limit = Clock::now() + last_timeout_;
    const auto behind = [this](int member) {
        return last_call(member) < sequence_ && !context_->is_dead(members_[static_cast<std::size_t>(member)]) &&
               transport_.control(member).state.load(std::memory_order_seq_cst) == ControlPage::open;
    };
    auto pause = std::chrono::microseconds(50);
    for (int member = 0; member < size(); ++member) {
        while (behind(member) && !recorded_failure() && Clock::now() < limit) {
            std::this_thread::sleep_for(pause);
            pause = std::min<std::chrono::microseconds>(pause * 2, 10ms);
            interrupted();
        }
    }
}

// Order ---------------------------------------------------------------------------------------------------------------

void Communicator::run(Call call, const std::function<void()> &interrupted) {
    check_usable();
    std::unique_lock lock(mutex_);
    if (closing_) throw closed_here();
    if (busy_ || !queue_.empty()) {
        lock.unlock();
        const auto work = submit(std::move(call));
        try {
            while (!work->wait(attention)) interrupted();
        } catch (...) {
            abort("interrupted");
            while (!work->wait(attention)) continue; // its memory is in use until it sees the abort
            throw;
        }
        if (const auto failure = work->failure()) throw *failure;
        return;
    }
    busy_ = true;
    lock.unlock();
    const auto hand_on = [this] {
        const std::scoped_lock relock(mutex_);
        busy_ = false;
        changed_.notify_all();
    };
    try {
        run_to_end(call, interrupted);
    } catch (...) {
        hand_on();
        throw;
    }
    hand_on();
}

std::shared_ptr<Work> Communicator::submit(Call call) {
    check_usable();
    auto work = std::make_shared<Work>();
    work->call_ = std::move(call);
    const std::scoped_lock lock(mutex_);
    if (closing_) throw closed_here();
    if (!stream_.joinable()) {
        try {
            stream_ = std::thread([this] { serve(); });
        } catch (const std::system_error &error) {
            errno = error.code().value();
            throw Failure::resource("starting the stream thread");
        }
    }
    queue_.push_back(work);
    changed_.notify_all();
    return work;
}

/// The stream: takes calls in order while nobody else runs one.
void Communicator::serve() {
    block_signals();
    for (;;) {
        std::shared_ptr<Work> work;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return !busy_ && (closing_ || !queue_.empty()); });
            if (queue_.empty()) return;
            work = queue_.front();
            queue_.pop_front();
            busy_ = true;
        }
        std::optional<Failure> failure;
        try {
            run_to_end(work->call_, [] {});
        } catch (const Failure &error) {
            failure = error;
        } catch (const std::exception &error) { // out of memory, for example
            failure = Failure::internal(error.what());
        }
        {
            const std::scoped_lock lock(mutex_);
            busy_ = false;
            changed_.notify_all();
        }
        work->finish(std::move(failure));
    }
}

// One call ------------------------------------------------------------------------------------------------------------

void Communicator::run_to_end(Call &call, const std::function<void()> &interrupted) {
    try {
        const auto start = Clock::now();
        begin(call);
        for (auto until = start + attention; !drive(call, until); until = Clock::now() + attention) interrupted();
        end();
        busy_time_.fetch_add((Clock::now() - start).count(), std::memory_order_relaxed);
    } catch (Failure &failure) {
        if (!failure_) { // this rank's own trouble: its peers shall not wait for it
            failure_ = failure;
            abort(failure.text);
        }
        await_readers();
        failure.self = rank_;
        failure.label = call.plan->label();
        throw;
    } catch (const std::bad_alloc &) {
        abort("out of memory");
        failure_ = recorded_failure();
        await_readers();
        throw;
    } catch (...) { // out of `interrupted`
        abort("interrupted");
        failure_ = recorded_failure();
        await_readers();
        throw;
    }
}

void Communicator::begin(Call &call) {
    if (failure_) throw *failure_;
    // Before the look at the alarm: a member that fails either waits until this call ends, or is heard now.
    own().in_call.store(1, std::memory_order_seq_cst);
    if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_) examine(false);
    call.fingerprint.sequence = ++sequence_;
    last_timeout_ = call.timeout;
    call.launch.tag = call.fingerprint.tag();
    own().calls[sequence_ % ControlPage::history].write(call.fingerprint);
    const auto no_memory = [] {
        errno = ENOMEM;
        throw Failure::resource("memory for the scratch of a call");
    };
    try {
        auto &[plan, executor] = executors_[call.plan.get()];
        if (!executor) {
            plan = call.plan;
            executor = std::make_unique<Executor>(*plan, transport_);
        }
        executor_ = executor.get();
        executor_->start(call.launch);
    } catch (const std::bad_alloc &) {
        no_memory();
    } catch (const std::length_error &) { // a size that no vector can have
        no_memory();
    }
    seen_moves_ = executor_->num_moves();
    polls_ = 0;
    started_ = {};
    stall_told_ = false;
}

/// The call is done. If a member has failed at it meanwhile, this rank may have read what was no longer lent to it.
void Communicator::end() {
    if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_) {
        const auto recorded = recorded_failure();
        if (recorded && recorded->sequence <= sequence_) {
            failure_ = *recorded;
            throw *recorded;
        }
    }
    own().in_call.store(0, std::memory_order_release);
}

/// After a failure: returns when no peer reads any longer what this rank has lent, so that its memory may go.
void Communicator::await_readers() {
    own().in_call.store(0, std::memory_order_seq_cst);
    alarm_all(); // whoever has recorded the failure may not have come so far
    const auto limit = Clock::now() + reader_time;
    const auto reads = [this](int member) {
        return transport_.released(member) < transport_.posted(member) &&
               transport_.control(member).in_call.load(std::memory_order_seq_cst) != 0 &&
               !context_->is_dead(members_[static_cast<std::size_t>(member)]);
    };
    for (int member = 0; member < size(); ++member) {
        while (reads(member) && Clock::now() < limit) sched_yield();
    }
}

/// True when the call is done, false when `until` has passed.
bool Communicator::drive(const Call &call, Clock::time_point until) {
    try {
        while (!executor_->advance()) {
            if (own().alarm.load(std::memory_order_acquire) != seen_alarm_) examine(true);
            if (!rest(call, until)) return false;
        }
        return true;
    } catch (const ForeignMessage &message) {
        if (const auto mismatch = find_mismatch()) fail(*mismatch);
        throw Failure::internal("rank " + std::to_string(message.peer) + " sent a message of another call");
    }
}

/// Waits a little: ranks that have a core each spin first, others let the others run; both sleep in the end.
bool Communicator::rest(const Call &call, Clock::time_point until) {
    if (executor_->num_moves() != seen_moves_) {
        seen_moves_ = executor_->num_moves();
        polls_ = 0;
    }
    const bool look = polls_++ % polls_per_look == 0;
    const Clock::time_point now = look ? Clock::now() : Clock::time_point{};
    if (look) {
        if (polls_ == 1) spin_until_ = now + spin_time;
        look_at_clock(call, now);
        if (now >= until) return false;
    }
    if (spin_) {
        if (!look || now < spin_until_) {
            relax();
            return true;
        }
    } else if (polls_ < max_yields) {
        sched_yield();
        return true;
    }
    ControlPage &page = own();
    const std::uint32_t bell = page.bell.load(std::memory_order_seq_cst);
    page.sleeping.store(1, std::memory_order_seq_cst);
    // Whoever stored something before it could see the flag is seen now; whoever stores later rings the bell.
    try {
        const std::uint64_t moves = executor_->num_moves();
        if (!executor_->advance() && executor_->num_moves() == moves) {
            examine(true);
            futex_wait(page.bell, bell, attention);
        }
    } catch (...) {
        page.sleeping.store(0, std::memory_order_relaxed);
        throw;
    }
    page.sleeping.store(0, std::memory_order_relaxed);
    polls_ = 0; // someone has moved or a while has passed: look at the clock, and try a little before the next sleep
    return true;
}

void Communicator::look_at_clock(const Call &call, Clock::time_point now) {
    if (started_ == Clock::time_point{}) started_ = now;
    const auto waited = now - started_;
    if (waited >= call.timeout) {
        examine(true); // a better reason, if there is one
        Failure failure;
        failure.cause = Cause::timeout;
        failure.sequence = sequence_;
        failure.seconds = std::chrono::duration<double>(call.timeout).count();
        failure.missing = missing();
        fail(failure);
    }
    if (waited >= stall_time && !stall_told_) {
        stall_told_ = true;
        std::string peers;
        for (int peer : missing()) peers += (peers.empty() ? "" : ", ") + std::to_string(peer);
        std::fprintf(stderr, "hocket: rank %d has waited %lld s in %s (call %llu) for rank %s\n", rank_,
                     static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(waited).count()),
                     call.plan->label().c_str(), static_cast<unsigned long long>(sequence_), peers.c_str());
    }
}

/// Who holds this call up: the members that have not made it, or else those that this rank waits for. Along a chain most
/// wait for one that has come and waits itself.
std::vector<int> Communicator::missing() const {
    std::vector<int> members;
    for (int member = 0; member < size(); ++member) {
        if (last_call(member) < sequence_) members.push_back(member);
    }
    return members.empty() ? executor_->waiting_for() : members;
}

// Trouble -------------------------------------------------------------------------------------------------------------

/// Looks at all that peers have written down. Throws when this call cannot, or shall not, succeed.
void Communicator::examine(bool waiting) {
    seen_alarm_ = own().alarm.load(std::memory_order_seq_cst);
    if (auto recorded = recorded_failure()) {
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
std::optional<Failure> Communicator::find_mismatch() const {
    const std::uint64_t oldest = sequence_ >= ControlPage::history ? sequence_ - ControlPage::history + 1 : 1;
    for (std::uint64_t sequence = oldest; sequence <= sequence_; ++sequence) {
        const auto call_of = [&](int member) -> std::optional<Fingerprint> {
            const auto call = transport_.control(member).calls[sequence % ControlPage::history].read();
            return call && call->sequence == sequence ? call : std::nullopt;
        };
        const auto mine = call_of(rank_);
        Failure failure;
        bool differs = false;
        for (int member = 0; member < size(); ++member) {
            const auto theirs = call_of(member);
            if (!theirs) continue;
            failure.calls[member] = *theirs;
            differs = differs || (mine && *theirs != *mine);
        }
        if (!differs) continue;
        failure.cause = Cause::mismatch;
        failure.sequence = sequence;
        return failure;
    }
    return std::nullopt;
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
    const auto me = AbortRecord::writing + static_cast<std::uint32_t>(rank_);
    std::uint32_t state = AbortRecord::none;
    while (!record.state.compare_exchange_strong(state, me, std::memory_order_acq_rel)) {
        if (state == AbortRecord::ready) return;
        // Another member is writing. It is about to finish, or it has died at it.
        const int writer = static_cast<int>(state - AbortRecord::writing);
        if (!context_->is_dead(members_[static_cast<std::size_t>(writer)])) {
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
    const std::size_t length = std::min(failure.text.size(), record.text.size() - 1);
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

} // namespace hocket
