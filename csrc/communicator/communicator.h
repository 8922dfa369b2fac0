// One rank's member of a communicator: runs calls in order, waits, and ends every wait that cannot succeed.
#pragma once

#include "base/waiting.h"
#include "channels/channels.h"
#include "control/members.h"
#include "executor/executor.h"
#include "messages/point_to_point.h"
#include "streams/doze.h"
#include "streams/mark.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hocket {

/// One collective call.
struct Call {
    std::shared_ptr<const Plan> plan;
    Fingerprint fingerprint; // without a sequence, which it gets when its turn comes
    Launch launch;           // so does its tag
    std::chrono::nanoseconds timeout{};
    std::shared_ptr<const void> keep; // what `launch` refers to, beside the memory
    const Site *site = nullptr;       // where the program makes it, for good; null where nobody looked
    bool is_repeated = false;         // `site` is where it made an earlier one like it
};

/// A call on the stream.
class Work {
  public:
    explicit Work(Call call) : call_(std::move(call)) {}

    /// Passed when the call is done, or has failed.
    Mark &end() const { return *end_; }
    const std::shared_ptr<Mark> &shared_end() const { return end_; }
    /// Its number on the communicator once it has begun, else 0.
    std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
    /// Writes down that the calling thread has waited for it since `begin`.
    void record_wait(std::uint64_t begin) const;

  private:
    friend class Communicator;
    void begin_launch(CommunicatorLane &lane);
    void record_launch() const;

    Call call_;
    std::shared_ptr<Mark> after_;      // what it comes after, beside earlier calls
    bool is_queued_ = false;           // waits for its turn; the queue's mutex guards this and the next one
    Clock::time_point submitted_ = {}; // where that was asked for: see Doze::is_watchful
    std::atomic<std::uint64_t> sequence_{0};
    std::shared_ptr<Mark> end_ = std::make_shared<Mark>();
    std::shared_ptr<Recorder> recorder_; // where it was launched in a trace; and what it is there
    std::uint32_t lane_ = 0, name_ = 0;
    Launching launching_;
};

/// Once per rank and communicator. Calls from several threads are ordered by a lock; all ranks have to order alike.
/// After a failure only close() works.
class Communicator {
  public:
    /// `members` are ranks of the context, `offsets` lead to their endpoints. `spin`: whether this rank has a core.
    /// `connections`: where there are any, they carry what goes to other hosts, or all. `generations`: of the members'
    /// pages, as they have told them; not needed where all are on this host.
    Communicator(std::shared_ptr<Context> context, std::vector<int> members, int rank,
                 std::span<const std::size_t> offsets, bool spin, std::shared_ptr<Connections> connections = nullptr,
                 std::span<const std::uint32_t> generations = {});
    Communicator(const Communicator &) = delete;
    Communicator &operator=(const Communicator &) = delete;
    ~Communicator();

    /// Throws on the communicator's own stream, which cannot wait for itself: there it can be neither closed nor
    /// destroyed.
    void check_not_on_stream() const;

    /// Runs a call to its end: in this thread where the communicator is idle, else on its stream. `interrupted` is
    /// asked every tenth of a second and after each signal; it may throw, which aborts the communicator. Before this
    /// waits, other than for a few microseconds and for no thread of this process, it calls `before_wait`, and perhaps
    /// again.
    void run(const Call &call, const Hook &interrupted, const Hook &before_wait = [] {});

    /// Puts a call on the stream, to begin once `after` is passed, if there is one. Where that has failed this rank
    /// gives up, and the work ends with its failure. The memory of the call must stay until the work has ended.
    std::shared_ptr<Work> submit(Call call, std::shared_ptr<Mark> after = nullptr);
    void submit(std::shared_ptr<Work> work, std::shared_ptr<Mark> after = nullptr);

    /// Of who waits for a call: if the stream has begun neither it nor some before it, this thread runs them, but for
    /// such as would have to wait before they begin; until then, and no longer than signals may wait. Then the stream
    /// goes on.
    void run_awaited(const Work &work, Clock::time_point until);

    /// The ranks in the job of the members that have not made the call of this number yet. From any thread.
    std::vector<int> ranks_behind(std::uint64_t sequence) const;

    /// Writes down for all members what the program does now, in a word of its own meaning. By one thread at a time;
    /// wakes nobody. Neither this nor progress() once it is closed: then the pages may be another communicator's.
    void note_progress(std::uint64_t word) { own().progress.write(word); }
    std::vector<std::pair<std::uint64_t, double>> progress() const { return members_.progress(); }
    /// The members that send nothing more. As progress().
    std::vector<int> closed() const { return members_.closed(); }

    /// Tells the peers why this rank gives up; their waits end. Nothing once it has left.
    /// only_later: not those in calls that this rank is done with, which may be behind.
    void abort(const std::string &reason, bool only_later = false);

    /// Lets nothing new begin, waits for what has begun, and tells the others that nothing more comes from here. Who
    /// closes several communicators does this to all of them before it closes one: while it waits for a member in one
    /// of them, that member may wait for this rank in another.
    void finish(const std::function<void()> &interrupted);

    /// Leaves, once it is finished and no open member is behind this one: a call that the others turn out not to have
    /// made, or of another size, is then found. Throws the failure that a peer has reported, once everything is
    /// released.
    void close(const std::function<void()> &interrupted);

    /// Wall time that calls have taken so far, their waits included.
    std::chrono::nanoseconds busy_time() const;

    /// Whether this rank may wait for a thread of this process: another member, or the one that hears of other hosts.
    bool waits_for_threads() const { return waits_for_threads_; }

    int rank() const { return members_.rank(); }
    int size() const { return members_.size(); }
    const Members &members() const { return members_; }
    ShmTransport &transport() { return channels_.memory(); }
    /// What the calls go through.
    Transport &carrier() { return channels_.carrier(); }
    /// Beside the calls: they hold each other up in nothing, but share every failure. Who waits in a call helps there.
    PointToPoint &messages() { return messages_; }

  private:
    Patience patience_of(bool spins) const { return channels_.is_paced() ? Patience::none() : Patience(spins); }
    void begin(const Call &call, const Hook &interrupted, const Hook &before_wait);
    void end(const Call &call);
    template <typename Move> bool attempt(const Call &call, const Move &move);
    bool poll(const Call &call);
    bool drive(const Call &call, Clock::time_point until);
    bool drain(const std::function<void()> &interrupted);
    bool take_turn();
    void run_on_stream(const Call &call, const Hook &interrupted);
    void await_earlier(Mark &mark);
    void hand_on();
    template <typename Part>
    bool run_part(const Call &call, const Launching &launching, const Hook &before_wait, const Part &part);
    void run_to_end(const Call &call, const Launching &launching, const Hook &interrupted, const Hook &before_wait);
    bool begin_awaited(const Work &work, Clock::time_point until);
    void end_awaited(const Work &work);
    bool run_first_before(const Work &work, Clock::time_point until);
    bool may_run_here(const Work &work) const;
    std::shared_ptr<Work> take_first(std::shared_ptr<Mark> &before);
    std::uint64_t identity(int first_rank, std::size_t first_offset) const;
    void record(const Call &call, const Launching &launching, std::uint64_t begin, std::uint64_t end,
                bool failed = false);
    void give_up(const std::string &reason, const std::optional<Failure> &own_failure);
    bool rest(const Call &call, Clock::time_point until);
    bool linger();
    void look_at_clock(const Call &call, Clock::time_point now);
    void examine(bool waiting, std::uint64_t ahead = 0);
    [[noreturn]] void fail(const Failure &failure);
    [[noreturn]] void fail_at_difference_to(int peer);
    [[noreturn]] void fail_at_closed(int member, std::uint64_t sequence);
    [[noreturn]] void fail_at_size(const Call &call, const ForeignSize &size);
    std::optional<Failure> concerning_failure(std::uint64_t sequence);
    void look_for_lost(std::span<const int> awaited);
    std::optional<Failure> find_mismatch() const;
    void await_comers(std::uint64_t sequence) const;
    void await_members(const std::function<void()> &interrupted);
    void await_followers(const Call &call, const Hook &interrupted, const Hook &before_wait);
    bool follows(int member) const {
        return std::max(members_.last_call(member), heard_all_) + ControlPage::lead > sequence_;
    }
    std::vector<int> missing() const;
    void leave();
    void end_turn();
    void serve();

    ControlPage &own() const { return members_.own(); }

    std::shared_ptr<Context> context_;
    bool waits_for_threads_ = false;
    std::shared_ptr<Connections> connections_;
    Channels channels_;
    Members members_;
    CommunicatorLane lane_; // of a trace
    PointToPoint messages_;

    std::vector<int> neighbours_; // members that may run on a core of this rank

    bool spin_; // of a call in its caller's thread
    // Used by whoever runs the current call: the queue's `turn` passes them on.
    std::map<std::shared_ptr<const Plan>, std::unique_ptr<Executor>> executors_;
    const Plan *plan_ = nullptr; // of the last call, and its executor
    Executor *executor_ = nullptr;
    const Plan *named_ = nullptr; // of the last call that a trace has, and the name that this has there
    std::uint32_t name_ = 0;
    std::optional<Failure> failure_;          // once set, every call fails with it
    bool passed_over_ = false;                // a failure is recorded that concerned no call so far
    std::uint64_t sequence_ = 0, digest_ = 0; // of the last call, and of all calls so far
    std::uint64_t heard_all_ = 0;             // all members have made the call of this number, as its end has shown
    std::chrono::nanoseconds last_timeout_{}; // of the last call
    std::uint64_t first_ticks_;               // and the time then: what a tick is in nanoseconds
    Clock::time_point first_time_;
    std::atomic<std::uint64_t> busy_ticks_{0};  // atomic for readers
    std::uint64_t begun_ticks_ = 0;             // of the call at hand
    bool has_raised_ = false;                   // in a call that the program waits for
    std::vector<std::shared_ptr<Mark>> failed_; // ends of works
    bool told_ = false,
         was_recorded_ = false; // when it was finished: had the program heard; was a failure written down
    std::uint32_t seen_alarm_ = 0;
    Clock::time_point broken_since_{}; // see Members::find_lost
    std::uint64_t seen_moves_ = 0;
    Patience patience_;       // since the last move
    bool exchanges_ = false;  // of the last plan: see Executor::exchanges_with
    bool lingers_ = false;    // of the call at hand, in its caller's thread, if it exchanges short chunks
    bool may_linger_ = false; // it has not done so in vain since the last move
    Clock::time_point started_{};
    int num_asked_ = 0; // in the call at hand: see Members::ask_hosts
    bool stall_told_ = false;

    struct Queue {
        /// Of `turn`: a call runs; works wait, or the communicator closes. Without the latter, which is set and taken
        /// away under the mutex, calls begin and end without the mutex.
        static constexpr std::uint32_t busy = 1, attended = 2;
        std::atomic<std::uint32_t> turn{0};    // released by whoever ends a call, acquired by whoever begins one
        std::atomic<std::thread::id> runner{}; // of the current call: a thread finds itself there if it is that
        std::mutex mutex;                      // guards the rest but the thread
        std::condition_variable changed;
        bool closing = false;
        bool closed = false;
        bool may_leave = false;     // closed, and of several threads that close none has begun to leave
        bool closed_inside = false; // by a signal handler above a blocking call; used by whoever has the turn
        bool left = false;          // the endpoint may belong to another communicator
        std::deque<std::shared_ptr<Work>> works;
        Doze doze;                     // of the stream
        bool is_wanted = false;        // somebody waits for what it has to do
        std::shared_ptr<Work> begun;   // by who waited for it, and for the stream to go on with; the turn is its own
        std::shared_ptr<Mark> awaited; // what the stream's last call comes after
        std::thread stream;
        bool has_stream = false; // it has not ended, as it does when it has been idle for long

        /// With the mutex held.
        void wake() {
            if (works.empty()) return;
            is_wanted = true;
            if (!doze.is_asleep()) changed.notify_all();
        }
        bool is_busy() const { return (turn.load(std::memory_order_acquire) & busy) != 0; }
        /// With the mutex held: std::runtime_error where a call cannot have its turn before this thread goes on.
        void check_awaitable() const {
            if (awaited) awaited->check_awaitable();
            for (const auto &work : works) {
                if (work->after_) work->after_->check_awaitable();
            }
        }
        bool runs_here() const { return runner.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
    };
    OfThisProcess<Queue> queue_;
};

} // namespace hocket
