// A stream: what is submitted is done in order by a thread of its own, beside whoever submits it.
#pragma once

#include "streams/mark.h"
#include "trace/trace.h"

#include <functional>
#include <memory>
#include <string>

namespace hocket {

/// What a stream does at its turn. It is destroyed right after, by the stream's thread, also where it is skipped.
struct Task {
    virtual ~Task() = default;
    /// What it throws fails the stream.
    virtual void run() = 0;
    /// What a trace calls it; asked before it runs.
    virtual std::string name() const { return "task"; }
};

/// Thread-safe; in a forked child every use is a Failure. The thread starts with the first task that has to wait its
/// turn, and ends once nobody has the stream any more and all is done.
///
/// A stream fails with what a task throws, and with what has failed a mark that it waits for. Then it skips its tasks
/// and fails the marks that are recorded on it, until somebody takes the failure.
class Stream {
  public:
    /// Its thread calls this with what it has to do.
    using Around = std::function<void(const std::function<void()> &serve)>;

    /// `recorder`: what it does is written down there while it is traced.
    explicit Stream(
        std::string name, Around around = [](const std::function<void()> &serve) { serve(); },
        std::shared_ptr<Recorder> recorder = nullptr);
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    ~Stream();

    /// Throws a resource failure if no thread can be started.
    void submit(std::unique_ptr<Task> task);
    /// A mark behind all that was submitted so far; of the event with this number in traces, or of none.
    std::shared_ptr<Mark> record(bool timed = false, std::uint64_t event = 0);
    /// What is submitted from here on comes after the mark, which traces call by this name, and by the number of the
    /// event whose mark it is, if it is one.
    void wait(std::shared_ptr<Mark> mark, std::string name = "mark", std::uint64_t event = 0);
    /// Whether all that was submitted is done.
    bool is_idle() const;
    /// Of a stream that has failed, else null. From here on its tasks are run again.
    std::exception_ptr take_failure();
    const std::string &name() const;

    /// Before a fork: returns once no thread is inside what its stream's `around` does before it calls `serve`.
    static void await_started();
    /// At the end of the process: all streams end, once they have done what was submitted or, with `at_once`, what they
    /// are doing now. `interrupted` is asked every tenth of a second. Nothing can be submitted from here on.
    static void end_all(bool at_once, const Hook &interrupted);

  private:
    struct Item;
    struct State;
    struct Threads;
    static Threads &threads();
    static void serve(State &state);

    void start() const;
    void enqueue(Item item) const;

    std::shared_ptr<State> state_;
    HomeProcess home_;
};

} // namespace hocket
