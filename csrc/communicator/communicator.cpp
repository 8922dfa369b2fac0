#include "communicator/communicator.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

namespace hocket {

namespace {

/// The generation of the first member's page: all members know the same.
std::uint32_t first_generation(const Context &context, int rank, std::size_t offset,
                               std::span<const std::uint32_t> generations) {
    if (!generations.empty()) return generations.front();
    const Mapping &mapping = *context.at(rank).mapping;
    if (!mapping.has<ControlPage>(offset)) return 0; // the transport refuses it
    return reinterpret_cast<const ControlPage *>(mapping.base() + offset)->generation.load(std::memory_order_acquire);
}

/// The members, whose pages lie in the endpoints of this transport.
std::vector<Member> members_of(const Context &context, std::span<const int> ranks, const ShmTransport &transport,
                               std::span<const std::uint32_t> generations) {
    std::vector<Member> members;
    for (const int rank : ranks) {
        const Context::Rank &known = context.at(rank);
        const Endpoint &endpoint = transport.endpoint(static_cast<int>(members.size()));
        members.push_back({rank, known.shares_process, *known.presence, endpoint.control(), endpoint.aborted_calls()});
        if (known.is_elsewhere) members.back().told_generation = generations[members.size() - 1];
        members.back().host = known.host;
    }
    return members;
}

std::optional<Spanning> spanning(const Context &context, std::span<const int> ranks, std::size_t first_offset,
                                 std::uint32_t generation) {
    if (std::ranges::none_of(ranks, [&](int rank) { return context.at(rank).is_elsewhere; })) return std::nullopt;
    return Spanning{.name = Channels::name_of(ranks.front(), first_offset, generation, Lane::collectives),
                    .bell = context.leader_bell(),
                    .leader = context.leader()};
}

} // namespace

// Life ----------------------------------------------------------------------------------------------------------------

Communicator::Communicator(std::shared_ptr<Context> context, std::vector<int> members, int rank,
                           std::span<const std::size_t> offsets, bool spin, std::shared_ptr<Connections> connections,
                           std::span<const std::uint32_t> generations)
    : context_(std::move(context)), connections_(std::move(connections)),
      channels_(*context_, members, rank, offsets, first_generation(*context_, members.at(0), offsets[0], generations),
                Lane::collectives, connections_.get()),
      members_(members_of(*context_, members, channels_.memory(), generations), rank,
               spanning(*context_, members, offsets[0],
                        first_generation(*context_, members.at(0), offsets[0], generations))),
      lane_(context_->recorder(), identity(members[0], offsets[0]), members),
      messages_(*context_, members, offsets, members_, spin, lane_, connections_.get()), spin_(spin),
      first_ticks_(ticks()), first_time_(Clock::now()), patience_(spin) {
    for (int member = 0; member < size(); ++member) {
        if (member == rank) continue;
        const Context::Rank &other = context_->at(members[static_cast<std::size_t>(member)]);
        if (other.shares_process || other.is_elsewhere) waits_for_threads_ = true;
        if (other.is_neighbour) neighbours_.push_back(member);
    }
}

Communicator::~Communicator() {
    try {
        close([] {});
    } catch (...) { // the peers have been told already, and a destructor has nobody to tell
    }
}

void Communicator::finish(const std::function<void()> &interrupted) {
    if (!queue_.is_here()) return; // a forked child
    check_not_on_stream();
    {
        const std::scoped_lock lock(queue_->mutex);
        if (queue_->left) return; // the endpoints, its own too, may be another communicator's by now
    }
    const bool had_raised = messages_.has_raised();
    messages_.close(interrupted);
    if (!drain(interrupted)) return;
    const auto is_told = [](const auto &end) { return end->is_told(); };
    const bool has_heard = has_raised_ || std::ranges::any_of(failed_, is_told);
    // What this rank has done itself, as it gave up, the program knows.
    told_ = had_raised || (failure_ && (has_heard || failure_->rank == rank()));
    was_recorded_ = members_.recorded_failure().has_value();
    channels_.end();
    messages_.end_channels();
    // Who waits for more of this rank shall hear of it: else each would wait for the other.
    own().state.store(ControlPage::closing, std::memory_order_seq_cst);
    const std::scoped_lock lock(queue_->mutex);
    queue_->may_leave = true;
}

void Communicator::close(const std::function<void()> &interrupted) {
    if (!queue_.is_here()) return; // a forked child
    check_not_on_stream();
    bool may_leave = false;
    const auto claim = [&] {
        const std::scoped_lock lock(queue_->mutex);
        may_leave = may_leave || std::exchange(queue_->may_leave, false);
        return may_leave;
    };
    try {
        finish(interrupted);
        if (!claim()) return;
        if (!failure_) await_members(interrupted);
    } catch (...) {
        abort("interrupted");
        finish([] {}); // the abort ends what is under way
        if (claim()) leave();
        throw;
    }
    if (const auto mismatch = find_mismatch()) members_.settle(*mismatch);
    auto failure = members_.recorded_failure();
    leave();
    if (!failure || told_) return; // this rank has raised it already
    const bool says_that_it_closed =
        failure->cause == Cause::aborted && std::ranges::count(failure->missing, rank()) > 0;
    if ((says_that_it_closed || failure->rank == rank()) && !was_recorded_) return; // as it does here, in good order
    members_.address(*failure);
    throw *failure;
}

/// Goes for good, and offers the endpoint for another communicator, once all members have left this one.
void Communicator::leave() {
    std::vector<std::size_t> unread = channels_.memory().leave();
    std::ranges::copy(messages_.leave(), std::back_inserter(unread));
    {
        const std::scoped_lock lock(queue_->mutex);
        queue_->left = true;
    }
    own().state.store(ControlPage::closed, std::memory_order_seq_cst);
    members_.alarm_all();
    context_->retire_endpoint(channels_.memory().own_offset(), members_.have_all_left(), std::move(unread));
}

void Communicator::check_not_on_stream() const {
    const std::scoped_lock lock(queue_->mutex);
    if (queue_->stream.get_id() != std::this_thread::get_id()) return;
    throw std::runtime_error("an op closed the communicator that runs it; close it after the call");
}

/// Lets no new call in and waits for those that are. False where there is nothing left to do for who closes.
bool Communicator::drain(const std::function<void()> &interrupted) {
    std::unique_lock lock(queue_->mutex);
    if (queue_->closed) return false;
    queue_->closing = true;
    queue_->turn.fetch_or(Queue::attended, std::memory_order_relaxed);
    queue_->changed.notify_all();
    if (queue_->runs_here()) { // a signal handler, above its own call
        queue_->closed = queue_->closed_inside = true;
        lock.unlock();
        abort("it was closed inside its own collective"); // the call may still look at channels: it leaves when it ends
        return false;
    }
    const auto idle = [this] { return !queue_->is_busy() && queue_->works.empty(); };
    while (!queue_->changed.wait_for(lock, attention, idle)) {
        lock.unlock();
        interrupted();
        lock.lock();
    }
    if (queue_->closed) return false; // another thread was faster
    queue_->closed = true;
    lock.unlock();
    if (queue_->stream.joinable()) queue_->stream.join();
    return true;
}

// One call ------------------------------------------------------------------------------------------------------------

/// Runs a part of a call, from its beginning or from where another part has ended: true when the call is done, false
/// where `part` says that it is not.
template <typename Part>
bool Communicator::run_part(const Call &call, const Launching &launching, const Hook &before_wait, const Part &part) {
    const auto note_failure = [&] {
        before_wait();
        if (lane_.is_on()) record(call, launching, begun_ticks_, ticks(), true);
    };
    try {
        if (!part()) return false;
        end(call);
    } catch (Failure &failure) {
        note_failure();
        if (failure.cause == Cause::aborted && failure.rank < 0) failure.rank = rank(); // a user's op, for example
        give_up(failure.text, failure);
        if (failure.sequence == 0 || failure.sequence == sequence_) failure.label = call.plan->label();
        members_.address(failure);
        throw;
    } catch (const std::bad_alloc &) {
        note_failure();
        give_up("out of memory", std::nullopt);
        throw;
    } catch (...) { // out of `interrupted`
        note_failure();
        give_up("interrupted", std::nullopt);
        throw;
    }
    const std::uint64_t end_ticks = ticks(); // before it has begun, perhaps, where a virtual machine was moved
    if (end_ticks > begun_ticks_)
        busy_ticks_.store(busy_ticks_.load(std::memory_order_relaxed) + (end_ticks - begun_ticks_),
                          std::memory_order_relaxed);
    if (lane_.is_on()) [[unlikely]]
        record(call, launching, begun_ticks_, end_ticks);
    return true;
}

void Communicator::run_to_end(const Call &call, const Launching &launching, const Hook &interrupted,
                              const Hook &before_wait) {
    begun_ticks_ = ticks();
    run_part(call, launching, before_wait, [&] {
        begin(call, interrupted, before_wait);
        if (poll(call)) return true;
        before_wait();
        while (!drive(call, Clock::now() + attention)) interrupted();
        return true;
    });
}

/// Of who waits for it, in whose thread it begins as a blocking call does. False when `until` has passed before its
/// end.
bool Communicator::begin_awaited(const Work &work, Clock::time_point until) {
    patience_ = patience_of(spin_);
    lingers_ = !spin_ && !channels_.is_paced();
    begun_ticks_ = ticks();
    return run_part(
        work.call_, work.launching_, [] {},
        [&] {
            begin(work.call_, [] {}, [] {});
            const bool may_poll = Clock::now() + yield_time < until; // it looks at no clock, and may copy for long
            return (may_poll && poll(work.call_)) || drive(work.call_, until);
        });
}

/// The rest of it, on the stream.
void Communicator::end_awaited(const Work &work) {
    run_part(
        work.call_, work.launching_, [] {},
        [&] {
            while (!drive(work.call_, Clock::now() + attention)) continue;
            return true;
        });
}

std::chrono::nanoseconds Communicator::busy_time() const {
    const auto ticks_so_far = static_cast<double>(std::max<std::uint64_t>(ticks() - first_ticks_, 1));
    const auto time_so_far = std::chrono::duration<double>(Clock::now() - first_time_);
    const double busy = static_cast<double>(busy_ticks_.load(std::memory_order_relaxed)) / ticks_so_far;
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time_so_far * busy);
}

/// Ends this rank's part in a call that failed. Trouble that is only its own is told to the peers, which else would
/// wait.
void Communicator::give_up(const std::string &reason, const std::optional<Failure> &own_failure) {
    if (!failure_) {
        abort(reason);
        failure_ = own_failure ? own_failure : members_.recorded_failure();
    }
    const std::uint64_t call = own().in_call.load(std::memory_order_relaxed);
    if (call == 0) return; // it has not begun
    own().give_up_at(call);
    members_.await_readers(
        &ControlPage::in_call, call, [this] { carrier().withdraw(); },
        [this](int member) { return may_be_used_by(carrier(), member); });
}

void Communicator::begin(const Call &call, const Hook &interrupted, const Hook &before_wait) {
    if (failure_) throw *failure_;
    // Before the look at the alarm: a member that fails either waits until this call ends, or is heard now.
    own().in_call.store(sequence_ + 1, std::memory_order_seq_cst);
    if (sequence_ % ControlPage::lead == 0) await_followers(call, interrupted, before_wait);
    Fingerprint fingerprint = call.fingerprint;
    fingerprint.sequence = ++sequence_;
    if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_ || passed_over_) examine(false);
    last_timeout_ = call.timeout;
    const std::uint64_t digest = fingerprint.digest();
    own().note_call(fingerprint, call.site, call.is_repeated);
    digest_ = mix(digest_, digest);
    if (sequence_ % ControlPage::lead == 0) own().digest_at(sequence_).store(digest_, std::memory_order_relaxed);
    own().last_call.store(sequence_, std::memory_order_release);
    if (sequence_ % ControlPage::lead == ControlPage::lead / 2) members_.tell_hosts(); // before they wait for it
    const auto no_memory = [] {
        errno = ENOMEM;
        throw Failure::resource("allocation of scratch memory for a call");
    };
    try {
        if (plan_ != call.plan.get()) {
            auto &executor = executors_[call.plan];
            if (!executor) executor = std::make_unique<Executor>(*call.plan, carrier(), context_->profile());
            plan_ = call.plan.get();
            executor_ = executor.get();
            exchanges_ = executor_->exchanges_with(neighbours_);
        }
        if (lane_.recorder()->has_steps()) executor_->record(lane_.recorder().get(), lane_.number(), sequence_);
        else executor_->record(nullptr);
        executor_->start(call.launch, Fingerprint::tag(digest, members_.epoch()));
    } catch (const std::bad_alloc &) {
        no_memory();
    } catch (const std::length_error &) { // a size that no vector can have
        no_memory();
    }
    seen_moves_ = executor_->num_moves();
    patience_.renew();
    may_linger_ = lingers_ = lingers_ && exchanges_ && executor_->has_short_chunks();
    started_ = broken_since_ = {};
    num_asked_ = 0;
    stall_told_ = false;
}

/// The call is done. If a member has failed at it meanwhile, this rank may have read what was no longer lent to it.
void Communicator::end(const Call &call) {
    if (own().alarm.load(std::memory_order_seq_cst) != seen_alarm_) {
        if (const auto recorded = concerning_failure(sequence_)) {
            failure_ = *recorded;
            throw *recorded;
        }
    }
    own().in_call.store(0, std::memory_order_release);
    if (call.plan->shape().hears_all && call.launch.block > 0) heard_all_ = sequence_;
}

/// True when the call is done. Most are so after a few tries, and read no clock. Where a rank has no core of its own,
/// no other can go on while this one tries; but of what is long more has come meanwhile.
bool Communicator::poll(const Call &call) {
    return attempt(call, [this] {
        const unsigned most = patience_.spins() ? polls_before_wait : lingers_ ? 1 : 2;
        for (unsigned polls = most;; relax()) {
            if (executor_->advance()) return true;
            if (own().alarm.load(std::memory_order_acquire) != seen_alarm_) examine(true);
            if (--polls == 0) return linger() && executor_->advance();
        }
    });
}

/// True when the call is done, false when `until` has passed.
bool Communicator::drive(const Call &call, Clock::time_point until) {
    return attempt(call, [this, &call, until] {
        while (rest(call, until)) { // as the call has been tried just now
            if (executor_->advance()) return true;
            if (own().alarm.load(std::memory_order_acquire) != seen_alarm_) examine(true);
        }
        return false;
    });
}

/// Moves the data of a call, which another message or another size than it expects ends.
template <typename Move> bool Communicator::attempt(const Call &call, const Move &move) {
    try {
        return move();
    } catch (const ForeignMessage &message) {
        if (Fingerprint::epoch_of(message.tag) != members_.epoch()) {
            throw Failure::internal(members_.name_of(message.peer) +
                                    " sent a message that is left over from an earlier communicator");
        }
        fail_at_difference_to(message.peer);
    } catch (const ForeignSize &size) { fail_at_size(call, size); } catch (const Failure &failure) {
        if (failure.cause == Cause::resource) examine(false); // the memory of a peer that gave up may be gone
        throw;
    }
}

/// Of a rank that exchanges short chunks with all that share its core, and waits for none of them: what is missing will
/// come before another of them has run, which would wait for the same. Whether something has moved.
bool Communicator::linger() {
    if (!may_linger_ || executor_->was_interrupted() || executor_->waits_for(neighbours_)) return false;
    const std::uint64_t moves = executor_->num_moves();
    const auto until = Clock::now() + linger_time;
    do {
        relax();
        if (executor_->advance() || executor_->num_moves() != moves) return true;
    } while (Clock::now() < until);
    may_linger_ = false;
    return false;
}

/// Waits a little: tries on while there is patience, then sleeps until a peer rings.
bool Communicator::rest(const Call &call, Clock::time_point until) {
    if (executor_->num_moves() != seen_moves_) {
        seen_moves_ = executor_->num_moves();
        patience_.renew();
        may_linger_ = lingers_;
    }
    if (patience_.wants_clock()) {
        const auto now = Clock::now();
        patience_.look(now);
        look_at_clock(call, now);
        if (now >= until) return false;
        if (patience_.has_looked()) messages_.help(now, false);
    }
    if (executor_->was_interrupted()) return true; // others want this core no more than this rank does
    if (!patience_.is_over()) {
        if (!linger()) patience_.pass();
        return true;
    }
    const Sleeper sleeper(own());
    const std::uint64_t moves = executor_->num_moves();
    const auto now = Clock::now();
    if (executor_->advance() || executor_->num_moves() != moves) return true;
    examine(true);
    const auto arrival = carrier().until_arrival(now);
    sleeper.sleep(std::min<std::chrono::nanoseconds>({attention, arrival, until - now, messages_.help(now, true)}));
    return true;
}

void Communicator::look_at_clock(const Call &call, Clock::time_point now) {
    if (started_ == Clock::time_point{}) started_ = now;
    const auto waited = now - started_;
    if (waited >= call.timeout) {
        examine(true); // a better reason, if there is one
        // The rank is that whose patience has ended; others are told of it.
        Failure failure(Cause::timeout, rank(), members_.circle());
        failure.sequence = sequence_;
        failure.seconds = std::chrono::duration<double>(call.timeout).count();
        failure.missing = missing();
        const auto has_come = [this](int member) { return members_.last_call(member) >= sequence_; };
        if (std::ranges::none_of(failure.missing, has_come)) { // else nobody knows what these wait for
            for (int member = 0; member < size(); ++member) {
                if (const auto theirs = members_.call_of(member, sequence_)) failure.calls[member] = *theirs;
            }
        }
        fail(failure);
    }
    if (waited >= attention * (num_asked_ + 1)) { // ranks elsewhere may call something else
        ++num_asked_;
        members_.ask_hosts();
    }
    if (waited >= stall_time && !stall_told_) {
        const auto awaited = missing();
        stall_told_ = !awaited.empty(); // a call may also just take long
        if (stall_told_)
            members_.tell_stall(waited, call.plan->label() + " (call " + std::to_string(sequence_) + ")", awaited,
                                sequence_);
    }
}

} // namespace hocket
