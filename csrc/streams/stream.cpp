#include "streams/stream.h"

#include "base/error.h"

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

namespace hocket {
/// One of the three.
struct Stream::Item {
    std::unique_ptr<Task> task = nullptr;
    std::shared_ptr<Mark> awaited = nullptr, recorded = nullptr;
    bool timed = false;      // of the recorded one
    std::uint64_t event = 0; // whose mark that is, or the awaited one
    std::string name{};      // of the awaited one, in traces
};

struct Stream::State {
    State(std::string its_name, Around its_around, std::shared_ptr<Recorder> its_recorder)
        : name(std::move(its_name)), around(std::move(its_around)), recorder(std::move(its_recorder)) {}

    const std::string name;
    const Around around;
    const std::shared_ptr<Recorder> recorder; // or none
    std::optional<std::uint32_t> lane;  // of the traces, once there was one: used by the thread, or while it is idle
    std::atomic<bool> cancelled{false}; // the process ends: what it waits for does not matter any more
    std::mutex mutex;                   // guards the rest
    std::condition_variable changed;    // for the thread
    std::deque<Item> items;
    std::atomic<std::uint64_t> num_items{0}; // ever, to be looked at without the mutex
    std::exception_ptr failure;
    bool has_thread = false;
    bool running = false;  // the thread is at an item that it has taken
    bool sleeping = false; // the thread has to be told of new items
    bool ending = false;

    bool is_idle() const { return items.empty() && !running; }
    bool is_traced() const { return recorder && recorder->is_on(); }
    std::uint32_t own_lane() {
        if (!lane) lane = recorder->add_lane({TraceLane::Kind::stream, name});
        return *lane;
    }
    /// With the lock held: who saw the mark pass finds the stream idle, and later marks pass later.
    void pass(Mark &mark, bool timed, std::uint64_t event) {
        if (event != 0 && is_traced()) recorder->instant(own_lane(), "event reached", event);
        mark.pass(failure, timed ? Clock::now() : Clock::time_point{});
    }
    void execute(const Item &item);
};

/// The threads of all streams of this process. A forked child has its own, without any.
struct Stream::Threads {
    const HomeProcess home;
    std::mutex mutex; // guards the rest
    std::condition_variable changed;
    std::set<State *> running;
    std::size_t num_threads = 0; // also those that have only to let go of their state
    std::size_t num_starting = 0;
    bool closed = false;
};

Stream::Threads &Stream::threads() {
    static std::atomic<Threads *> current{new Threads}; // never destroyed: threads may outlive what is static
    Threads *found = current.load(std::memory_order_acquire);
    if (found->home.is_here()) return *found;
    auto fresh = std::make_unique<Threads>();
    if (current.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
    return *found;
}

Stream::Stream(std::string name, Around around, std::shared_ptr<Recorder> recorder)
    : state_(std::make_shared<State>(std::move(name), std::move(around), std::move(recorder))) {}

Stream::~Stream() {
    if (!home_.is_here()) { // its mutex may be held by a thread of the parent
        new std::shared_ptr<State>(std::move(state_));
        return;
    }
    const std::scoped_lock lock(state_->mutex);
    state_->ending = true;
    state_->changed.notify_one();
}

const std::string &Stream::name() const { return state_->name; }

/// Of a stream that needs its thread now.
void Stream::start() const {
    Threads &all = threads();
    const std::scoped_lock registration(all.mutex);
    const std::scoped_lock lock(state_->mutex);
    if (all.closed) throw std::runtime_error("a stream was used while the process ends");
    if (state_->has_thread) return;
    // It keeps the state: what was submitted is done also when the stream itself is gone.
    start_thread("the thread of a stream", [kept = state_, &all]() mutable {
        kept->around([&kept, &all] {
            {
                const std::scoped_lock begin(all.mutex);
                --all.num_starting;
                all.changed.notify_all();
            }
            serve(*kept);
        });
        std::unique_lock end(all.mutex);
        all.running.erase(kept.get());
        end.unlock();
        kept = nullptr; // what it has of the interpreter goes as long as that is there: the end waits for this
        end.lock();
        --all.num_threads;
        all.changed.notify_all();
    }).detach();
    all.running.insert(state_.get());
    ++all.num_threads;
    ++all.num_starting;
    state_->has_thread = true;
}

void Stream::enqueue(Item item) const {
    std::unique_lock lock(state_->mutex);
    if (!state_->has_thread) {
        lock.unlock();
        start();
        lock.lock();
    }
    if (state_->ending) throw std::runtime_error("a stream was used while the process ends");
    state_->items.push_back(std::move(item));
    state_->num_items.fetch_add(1, std::memory_order_relaxed);
    if (state_->sleeping) state_->changed.notify_one();
}

void Stream::submit(std::unique_ptr<Task> task) {
    home_.check();
    enqueue({.task = std::move(task)});
}

std::shared_ptr<Mark> Stream::record(bool timed, std::uint64_t event) {
    home_.check();
    auto mark = std::make_shared<Mark>(state_.get());
    {
        const std::scoped_lock lock(state_->mutex);
        if (state_->is_idle()) {
            state_->pass(*mark, timed, event);
            return mark;
        }
    }
    enqueue({.recorded = mark, .timed = timed, .event = event});
    return mark;
}

void Stream::wait(std::shared_ptr<Mark> mark, std::string name, std::uint64_t event) {
    home_.check();
    if (mark->is_passed() && !mark->failure()) return;
    enqueue({.awaited = std::move(mark), .event = event, .name = std::move(name)});
}

bool Stream::is_idle() const {
    home_.check();
    const std::scoped_lock lock(state_->mutex);
    return state_->is_idle();
}

std::exception_ptr Stream::take_failure() {
    home_.check();
    const std::scoped_lock lock(state_->mutex);
    return std::exchange(state_->failure, nullptr);
}

/// Runs a task or awaits a mark, and throws what that has failed with.
void Stream::State::execute(const Item &item) {
    struct Recording { // ends with what it is about
        State &state;
        const Item &item;
        std::uint32_t name = 0;
        std::uint64_t begin = 0;
        Recording(State &its_state, const Item &its_item) : state(its_state), item(its_item) {
            if (!state.is_traced()) return;
            state.recorder->enter_lane(state.own_lane());
            name = state.recorder->name(item.awaited ? item.name : item.task->name());
            begin = ticks();
        }
        ~Recording() {
            if (begin == 0) return;
            if (item.awaited) state.recorder->wait(*state.lane, name, begin, item.event);
            else state.recorder->span(*state.lane, name, begin, ticks());
        }
    };
    const Recording recording(*this, item);
    if (!item.awaited) return item.task->run();
    while (!item.awaited->wait(attention)) {
        if (cancelled.load(std::memory_order_relaxed)) return;
    }
    if (item.awaited->failure()) std::rethrow_exception(item.awaited->tell_failure()); // by the stream, in its turn
}

/// The thread.
void Stream::serve(State &state) {
    const Mark::Runs runs(&state);
    // Of what has been raised, the last reference is never given up with the lock held: that may take the interpreter.
    std::exception_ptr failure, last;
    std::unique_lock lock(state.mutex);
    for (;;) {
        if (state.items.empty() && !state.ending) {
            const auto has_more = [&state, seen = state.num_items.load(std::memory_order_relaxed)] {
                return state.num_items.load(std::memory_order_relaxed) != seen;
            };
            lock.unlock();
            Patience(false, yields_before_sleep, yields_before_sleep).try_until(has_more);
            lock.lock();
        }
        state.sleeping = true;
        state.changed.wait(lock, [&state] { return state.ending || !state.items.empty(); });
        state.sleeping = false;
        if (state.items.empty()) break;
        Item item = std::move(state.items.front());
        state.items.pop_front();
        if (item.recorded) {
            state.pass(*item.recorded, item.timed, item.event);
            continue;
        }
        state.running = true;
        const bool skipped = state.failure != nullptr;
        lock.unlock();
        failure = nullptr;
        try {
            if (!skipped) state.execute(item);
        } catch (...) { failure = std::current_exception(); }
        item = {};
        lock.lock();
        if (!state.failure) std::swap(state.failure, failure);
        state.running = false;
    }
    if (state.failure && !state.cancelled.load(std::memory_order_relaxed)) {
        std::fprintf(stderr, "hocket: stream '%s' ended with an error that no call has raised: %s\n",
                     state.name.c_str(), text_of(state.failure).c_str());
    }
    last = std::exchange(state.failure, nullptr); // it goes as long as whoever made it is there
}

void Stream::await_started() {
    Threads &all = threads();
    std::unique_lock lock(all.mutex);
    all.changed.wait(lock, [&all] { return all.num_starting == 0; });
}

void Stream::end_all(bool at_once, const Hook &interrupted) {
    Threads &all = threads();
    std::unique_lock lock(all.mutex);
    all.closed = true;
    const auto end = [&all](bool cancelled) {
        for (State *state : all.running) {
            const std::scoped_lock its_lock(state->mutex);
            state->ending = true;
            state->changed.notify_one();
            if (!cancelled) continue;
            if (!state->failure)
                state->failure = std::make_exception_ptr(Failure(Cause::aborted, -1, "the process ends"));
            state->cancelled.store(true, std::memory_order_relaxed);
        }
    };
    end(at_once);
    while (!all.changed.wait_for(lock, attention, [&all] { return all.num_threads == 0; })) {
        lock.unlock();
        try {
            interrupted();
        } catch (...) {
            lock.lock();
            end(true);
            throw;
        }
        lock.lock();
    }
}

} // namespace hocket
