// What a rank writes down of its own doing while it is traced: begin and end of calls, waits, messages, moves and
// spans. Writing takes no lock; while nothing is traced, all that is left of it is a look at one flag.
#pragma once

#include "base/system.h"
#include "base/types.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace hocket {

/// One line of a trace. Times are ticks() until Recorder::take() makes nanoseconds of CLOCK_MONOTONIC of them, which is
/// one clock for all ranks of a host. What a field means where depends on `what`.
struct Record {
    /// collective: on a communicator. message: a send or receive there. blocking: a call of a thread that waits for
    /// what it launches; launch: one that does not. wait: of a thread, for what was launched. span: named by the
    /// program, or an item of a stream. move: of bytes, by an instruction of a plan. instant: what is done to an event,
    /// or the moment when a stream has reached one.
    enum class What : std::uint8_t { collective, message, blocking, launch, wait, span, move, instant };
    static constexpr std::uint8_t failed = 1, sends = 2, folds = 4, completes = 8, continues = 16, of_stream = 32;

    What what = What::span;
    Dtype dtype = Dtype::uint8;
    Op op = Op::sum;
    std::uint8_t flags = 0;
    std::uint32_t lane = 0; // where it is shown, and whose name, by their numbers in the recorder
    std::uint32_t name = 0;
    // collective, message: the lane of the thread that launched it; launch, wait: of what; move that sends: its Way
    std::uint32_t launcher = 0;
    std::uint64_t begin = 0, end = 0;
    std::uint64_t launched = 0; // collective, message; 0: as it began, by a thread that waits
    // collective, move, wait: of the call; message: of all from its source to its destination; instant, and of a wait
    // with `of_stream`: the number of the event, or 0
    std::uint64_t sequence = 0;
    std::uint64_t input = 0;  // collective: elements; message, move: bytes
    std::uint64_t output = 0; // collective: elements; message: tag; move: piece
    std::int32_t peer = -1;   // collective: root; message, move: the other end, -1 without one
    std::int32_t step = 0;    // of a move,
    std::int32_t order = 0;   // its place among the messages of that step on the channel,
    std::int32_t instruction = 0;
};

/// Where records are shown: a thread, a communicator, a stream.
struct TraceLane {
    enum class Kind : std::uint8_t { thread, communicator, stream };

    Kind kind = Kind::thread;
    std::string name;
    std::uint64_t id = 0;     // of a communicator: the same on all its members
    std::vector<int> ranks{}; // of a communicator: of its members, in the job
};

/// When a thread launched something, and its lane; nothing where nobody traces.
struct Launching {
    std::uint64_t at = 0;
    std::uint32_t lane = 0;
};

/// One rank's recorder. Any thread may write; start() and take() come from one thread at a time.
class Recorder {
  public:
    static constexpr std::size_t chunk_records = std::size_t{1} << 14; // for which there is memory at once

    /// `capacity`: records of one trace, which by default take up to 400 MB.
    explicit Recorder(std::size_t capacity = std::size_t{1} << 22);
    Recorder(const Recorder &) = delete;
    Recorder &operator=(const Recorder &) = delete;
    ~Recorder();

    bool is_on() const { return on_.load(std::memory_order_relaxed); }
    /// Whether moves are to be recorded, too.
    bool has_steps() const { return steps_.load(std::memory_order_relaxed); }

    /// Begins a trace; false where one is under way.
    bool start(bool steps);

    struct Taken {
        std::vector<Record> records;
        std::vector<TraceLane> lanes; // by number, from 0
        std::vector<std::string> names;
        bool overflowed = false; // it ended early, with as many records as there is room for
    };
    /// Ends the trace, and returns it.
    Taken take();

    void add(const Record &record);

    /// The number of a lane. A communicator that is there already is found by its id.
    std::uint32_t add_lane(TraceLane lane);
    /// Of the calling thread, which gets one if it has none.
    std::uint32_t lane_of_this_thread();
    /// Has what the calling thread does from now on shown in this lane.
    void enter_lane(std::uint32_t lane);
    std::uint32_t name(std::string_view text);

    /// A moment, now, in the life of an event.
    void instant(std::uint32_t lane, std::string_view text, std::uint64_t event) {
        const std::uint64_t now = ticks();
        if (is_on())
            add({.what = Record::What::instant,
                 .lane = lane,
                 .name = name(text),
                 .begin = now,
                 .end = now,
                 .sequence = event});
    }
    void span(std::uint32_t lane, std::uint32_t name, std::uint64_t begin, std::uint64_t end) {
        if (is_on()) add({.what = Record::What::span, .lane = lane, .name = name, .begin = begin, .end = end});
    }
    /// A wait until now: of a stream; or of a thread, for a stream or an event.
    void wait(std::uint32_t lane, std::uint32_t name, std::uint64_t begin, std::uint64_t event) {
        if (is_on())
            add({.what = Record::What::wait,
                 .flags = Record::of_stream,
                 .lane = lane,
                 .name = name,
                 .begin = begin,
                 .end = ticks(),
                 .sequence = event});
    }

  private:
    using Chunk = std::array<Record, chunk_records>;

    /// One moment on both clocks.
    struct Moment {
        std::uint64_t ticks = 0;
        std::int64_t nanoseconds = 0;
        static Moment now();
    };

    Chunk &chunk(std::size_t index);
    bool is_balanced(std::uint64_t state) const { return state >> 32 == (state & 0xffffffffU); }

    const std::size_t capacity_;
    const std::uint64_t id_; // no other recorder of this process ever has it
    std::atomic<bool> on_{false}, steps_{false}, overflowed_{false};
    /// Records that were begun (upper half) and ended (lower half) in this trace: readers acquire what writers released
    /// once both are equal. Full between traces, so that a late writer touches nothing.
    std::atomic<std::uint64_t> state_;
    std::vector<std::atomic<Chunk *>> chunks_;
    Moment started_;

    std::mutex mutex_; // guards the rest
    std::vector<TraceLane> lanes_;
    std::vector<std::string> names_;
    std::map<std::string, std::uint32_t, std::less<>> numbers_; // of names
    std::map<std::uint64_t, std::uint32_t> communicators_;      // lanes by id
};

/// A communicator's lane, which is made when it is first needed. Any thread may ask.
class CommunicatorLane {
  public:
    CommunicatorLane(std::shared_ptr<Recorder> recorder, std::uint64_t id, std::vector<int> ranks)
        : recorder_(std::move(recorder)), id_(id), ranks_(std::move(ranks)) {}

    const std::shared_ptr<Recorder> &recorder() const { return recorder_; }
    bool is_on() const { return recorder_->is_on(); }
    /// By the calling thread, now.
    Launching launch() const { return is_on() ? Launching{ticks(), recorder_->lane_of_this_thread()} : Launching{}; }
    std::uint32_t number() {
        std::uint32_t known = number_.load(std::memory_order_relaxed);
        if (known == 0)
            number_.store(known = 1 + recorder_->add_lane({TraceLane::Kind::communicator, {}, id_, ranks_}));
        return known - 1;
    }

  private:
    std::shared_ptr<Recorder> recorder_;
    std::uint64_t id_;
    std::vector<int> ranks_;
    std::atomic<std::uint32_t> number_{0}; // 0: none yet; else one more
};

} // namespace hocket
