// Sends and receives beside the calls of a communicator: who drives the machine that matches them, and how waits end.
#pragma once

#include "base/system.h"
#include "base/waiting.h"
#include "channels/channels.h"
#include "control/members.h"
#include "messages/match.h"
#include "streams/doze.h"
#include "streams/mark.h"
#include "streams/stream.h"
#include "trace/trace.h"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hocket {

/// A send or receive that somebody waits for.
struct Operation final : Exchange {
    Operation(const Message &message, std::chrono::nanoseconds limit) : Exchange(message), timeout(limit) {}

    std::chrono::nanoseconds timeout;
    Clock::time_point deadline = Clock::time_point::max(); // once it turns out that there is something to wait for
    bool finished = false; // well or not; like `failure`, guarded by the mutex of who runs it
    std::optional<Failure> failure;
    std::shared_ptr<Mark> end;   // of one that was begun, passed when it is finished
    unsigned num_waits = 0;      // of one that was begun: threads that wait for it
    std::shared_ptr<Mark> after; // of one that is deferred: what it comes after, or nothing
    Launching launching;         // in a trace
    std::uint64_t begun = 0;     // of one that was deferred, in a trace

    /// Well, or with `failure`; who waits for the end sees `cause`, where that is another one.
    void finish(std::exception_ptr cause = nullptr);

    bool is_awaited_receive() const { return !sends && (!end || num_waits > 0); }
};

using Operations = std::vector<std::shared_ptr<Operation>>;

/// Once per rank and communicator; thread-safe. Whoever waits drives: of several threads one, while the others sleep
/// and take over when it leaves. A thread of its own drives what isend and irecv have begun while nobody waits.
class PointToPoint {
  public:
    /// `ranks` are those of the members in the context, `offsets` lead to their endpoints. `spin`: whether this rank
    /// has a core. `members` must outlive this, and so must `lane`, the communicator's in traces.
    PointToPoint(Context &context, const std::vector<int> &ranks, std::span<const std::size_t> offsets,
                 Members &members, bool spin, CommunicatorLane &lane, Connections *connections);
    PointToPoint(const PointToPoint &) = delete;
    PointToPoint &operator=(const PointToPoint &) = delete;

    /// Begins them in order, once `after` is passed, if there is one, and what was to begin before has begun. Where
    /// that has failed this rank gives up, and they end with its failure. Their memory has to stay until they are
    /// finished; what goes wrong from here on is told by the operation. `timeout` counts from their beginning. Where
    /// another thread is here it calls `before_wait`.
    Operations begin(
        std::span<const Message> messages, std::chrono::nanoseconds timeout,
        const std::shared_ptr<Mark> &after = nullptr, const Hook &before_wait = [] {});

    /// Begins them, which none knows of yet, and waits for all. `interrupted` is asked every tenth of a second and may
    /// throw, which aborts the communicator. Before it waits, other than for a few microseconds, it calls
    /// `before_wait`, and perhaps again. Throws the failure of the first that failed.
    void run(std::span<Operation> operations, const Hook &interrupted, const Hook &before_wait = [] {});
    void run(std::span<const Message> messages, std::chrono::nanoseconds timeout, const Hook &interrupted);

    /// Of one that was begun, without a lock, which who drives may hold for long. False also where a trace shall have
    /// it.
    bool has_ended(const Operation &operation) const;
    /// False when `limit` passed before it was finished. What `interrupted` throws ends the wait only.
    bool wait(const std::shared_ptr<Operation> &operation, std::chrono::nanoseconds limit, const Hook &interrupted);
    /// Whom one that is not finished waits for, as ranks of the job.
    std::vector<int> missing(const Operation &operation);
    /// What has come that a receive does not take, and no other does, in words; "" where there is nothing.
    std::string found_instead(const Operation &operation);

    /// Of who waits in a call, now and then and before it sleeps: takes what others have sent, so that they wait for no
    /// room. Where somebody drives nothing is left to do. How long it may sleep, since `since`, unless a peer rings:
    /// only to be asked by who sleeps then.
    std::chrono::nanoseconds help(Clock::time_point since, bool sleeps_then);

    /// Lets nothing new begin, ends receives in which other threads wait for messages that have not come, and waits for
    /// all else that has begun. Tells on standard error of messages that nobody received, at either end.
    void close(const Hook &interrupted);
    /// After close(): touches no peer any more. Returns slots of the pool that may still be read.
    std::vector<std::size_t> leave() { return channels_.memory().leave(); }
    /// Nothing is sent any more.
    void end_channels() { channels_.end(); }
    bool has_delivered(int member) const { return channels_.has_delivered(member); }
    bool is_broken(int member) const { return carrier_.is_broken(member); }
    /// Whether a failure has ended an operation, which has raised it.
    bool has_raised() {
        const Lock lock(state_->mutex);
        return has_raised_;
    }

  private:
    using Lock = std::unique_lock<Mutex>;
    using Condition = std::function<bool()>;
    enum class Round : std::uint8_t { beginning, usual, thorough };

    void post(std::size_t num_new, Round round);
    void defer(const Operations &operations, const std::shared_ptr<Mark> &after);
    void post_deferred(std::size_t num_first, Mark *after);
    void check_awaitable() const;
    void set_deadlines();
    bool poll(std::span<const Operation> operations);
    bool is_idle() const;
    bool send_at_once(Operation &operation);
    bool receive_at_once(Operation &operation);
    bool receive_behind_others(Lock &lock, std::span<const Operation> operations, Operation &operation,
                               const Hook &before_wait);
    bool run_at_once(Lock &lock, std::span<Operation> operations, const Hook &before_wait);
    void run_all(Lock &lock, std::span<Operation> operations, const Hook &interrupted, const Hook &before_wait);
    void await_all(Lock &lock, std::span<const Operation> operations, const Hook &interrupted);
    bool await(Lock &lock, const Condition &condition, Clock::time_point until, std::span<const Operation> told,
               const Hook &interrupted);
    void drive(Lock &lock, const Condition &condition, Clock::time_point until, Patience &patience);
    bool sleep(Lock &lock, const Condition &condition, Clock::time_point until);
    bool step(Round round = Round::usual);
    void start_reading() {
        if (!std::exchange(reading_, true)) members_.own().in_messages.store(1, std::memory_order_seq_cst);
    }
    /// With the lock held, before it is let go for longer than between two tries.
    void stop_reading() {
        if (std::exchange(reading_, false)) members_.own().in_messages.store(0, std::memory_order_release);
    }
    /// A member that has failed meanwhile may have taken back what was just read.
    void check_read() const {
        if (members_.own().alarm.load(std::memory_order_seq_cst) == seen_alarm_) return;
        if (const auto recorded = members_.recorded_failure()) throw *recorded;
    }
    std::vector<int> examine();
    void look_for_closed(const std::vector<int> &closed) const;
    void look_for_lost();
    bool lose(const std::shared_ptr<Operation> &operation);
    std::vector<int> awaited(const Operation &operation) const;
    std::string label(const Operation &operation) const;
    std::string name_of_peer(const Operation &operation) const;
    std::string unwanted(const Operation &operation) const;
    void tell_own_need(Operation &operation) const;
    Failure left_by(int member, const Operation &operation) const;
    void collect();
    void end(Operation &operation);
    void record(const Operation &operation);
    void record_wait(const Operation &operation, const Launching &waiting);
    void record_call(Record::What what, const Operation &first, const Operation &last, std::size_t num_operations);
    void check_deadlines(Clock::time_point now);
    void give_up(const std::string &reason);
    void end_with(Failure failure);
    void end_with_caught(Operation *operation = nullptr);
    void hand_on();
    void start_background();
    void serve();
    Patience patience_of(bool spins, unsigned yields = max_yields) const {
        return channels_.is_paced() ? Patience::none() : Patience(spins, yields);
    }
    void end_awaited_receives();
    void warn_of_unmatched() const;
    void warn_of(std::size_t number, const Unmatched &first, const char *what, const char *why) const;

    Members &members_;
    CommunicatorLane &lane_;
    bool spin_;
    Channels channels_;
    Transport &carrier_; // that, or the one above

    struct State {
        Mutex mutex;                          // guards the rest, and all below
        std::condition_variable_any changed;  // for callers: finished, or nobody drives
        std::condition_variable_any work;     // for the thread in the background
        unsigned num_waiting = 0;             // callers that wait for `changed`
        bool driven = false;                  // by a caller
        std::vector<std::thread::id> callers; // of run()
        bool closing = false;
        bool stopping = false;
        std::thread background;
        bool has_background = false;       // it has not ended, as it does when it has been idle for long
        Doze doze;                         // of that
        std::unique_ptr<Stream> deferring; // waits for what the deferred ones come after, and begins them
    };
    OfThisProcess<State> state_;
    Matcher matcher_;
    Operations pending_;
    Operations deferred_;            // not begun yet, as they come after others, or after a mark
    std::optional<Failure> failure_; // once set, everything fails with it and the machine stands still
    bool has_raised_ = false;        // something has
    std::size_t num_lost_ = 0;       // sent by isend to members that had closed,
    Unmatched first_lost_;           // and the first of them
    std::uint32_t seen_alarm_ = 0;
    Clock::time_point broken_since_{}; // see Members::find_lost
    std::uint64_t seen_done_ = 0;
    unsigned num_runs_ = 0;
    bool reading_ = false; // what `in_messages` says to the others
    Clock::time_point next_deadline_ = Clock::time_point::max();
};

} // namespace hocket
