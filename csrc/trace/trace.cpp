#include "trace/trace.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <sched.h>

namespace hocket {
namespace {

constexpr std::uint64_t begun = std::uint64_t{1} << 32;

std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

constexpr std::uint64_t full(std::size_t capacity) { return capacity * (begun + 1); }

struct Freed {
    void operator()(void *memory) const { std::free(memory); }
};

/// The lane of a thread in the recorder that it used last: most use one all their life.
struct OwnLane {
    std::uint64_t recorder = 0;
    std::uint32_t lane = 0;
};
thread_local OwnLane own_lane;

} // namespace

using OwnedChunk = std::unique_ptr<std::array<Record, Recorder::chunk_records>, Freed>;

Recorder::Recorder(std::size_t capacity)
    : capacity_(capacity), id_(next_id()), state_(full(capacity)),
      chunks_((capacity + chunk_records - 1) / chunk_records) {}

Recorder::~Recorder() {
    for (auto &one : chunks_) std::free(one.load(std::memory_order_acquire));
}

/// The middle of the shortest of some tries, in none of which the thread was put aside for long.
Recorder::Moment Recorder::Moment::now() {
    Moment best;
    std::uint64_t least = ~std::uint64_t{0};
    for (int i = 0; i < 32; ++i) {
        const std::uint64_t before = hocket::ticks();
        timespec time{};
        clock_gettime(CLOCK_MONOTONIC, &time);
        const std::uint64_t after = hocket::ticks();
        if (after - before >= least) continue;
        least = after - before;
        best = {before + least / 2, std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec};
    }
    return best;
}

bool Recorder::start(bool steps) {
    if (is_on()) return false;
    overflowed_.store(false, std::memory_order_relaxed);
    started_ = Moment::now();
    std::uint64_t state = state_.load(std::memory_order_acquire);
    while (!is_balanced(state) || !state_.compare_exchange_weak(state, 0, std::memory_order_acq_rel)) {
        sched_yield();
        state = state_.load(std::memory_order_acquire);
    }
    steps_.store(steps, std::memory_order_relaxed);
    on_.store(true, std::memory_order_relaxed);
    return true;
}

Recorder::Taken Recorder::take() {
    on_.store(false, std::memory_order_relaxed);
    steps_.store(false, std::memory_order_relaxed);
    // Whoever writes now ends first; whoever comes later finds no room.
    std::uint64_t state = state_.load(std::memory_order_acquire);
    while (!is_balanced(state) || !state_.compare_exchange_weak(state, full(capacity_), std::memory_order_acq_rel)) {
        sched_yield();
        state = state_.load(std::memory_order_acquire);
    }
    const Moment ended = Moment::now();
    const std::size_t num_records = std::min<std::size_t>(state >> 32, capacity_);
    Taken taken;
    taken.overflowed = overflowed_.load(std::memory_order_relaxed);
    taken.records.reserve(num_records);
    for (std::size_t first = 0; first < num_records; first += chunk_records) {
        const OwnedChunk one(chunks_[first / chunk_records].exchange(nullptr, std::memory_order_acq_rel));
        if (!one) break; // there was no memory for it
        const auto end = one->begin() + static_cast<std::ptrdiff_t>(std::min(chunk_records, num_records - first));
        taken.records.insert(taken.records.end(), one->begin(), end);
    }
    const double per_tick = static_cast<double>(ended.nanoseconds - started_.nanoseconds) /
                            static_cast<double>(std::max<std::uint64_t>(ended.ticks - started_.ticks, 1));
    const auto nanoseconds = [&](std::uint64_t ticks) {
        const auto since = static_cast<double>(static_cast<std::int64_t>(ticks - started_.ticks));
        return static_cast<std::uint64_t>(started_.nanoseconds + static_cast<std::int64_t>(since * per_tick));
    };
    for (Record &record : taken.records) {
        for (std::uint64_t *time : {&record.begin, &record.end, &record.launched}) {
            if (*time != 0) *time = nanoseconds(*time);
        }
    }
    const std::scoped_lock lock(mutex_);
    taken.lanes = lanes_;
    taken.names = names_;
    return taken;
}

Recorder::Chunk &Recorder::chunk(std::size_t index) {
    std::atomic<Chunk *> &place = chunks_[index / chunk_records];
    Chunk *found = place.load(std::memory_order_acquire);
    if (found != nullptr) return *found;
    OwnedChunk made(static_cast<Chunk *>(std::calloc(1, sizeof(Chunk)))); // pages that nobody has touched cost nothing
    if (!made) throw std::bad_alloc();
    if (place.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) return *made.release();
    return *found; // another thread was faster
}

void Recorder::add(const Record &record) {
    const std::size_t index = state_.fetch_add(begun, std::memory_order_acquire) >> 32;
    if (index < capacity_) {
        try {
            chunk(index)[index % chunk_records] = record;
        } catch (const std::bad_alloc &) { // what it was about goes on without
            on_.store(false, std::memory_order_relaxed);
            overflowed_.store(true, std::memory_order_relaxed);
        }
    } else if (on_.exchange(false, std::memory_order_relaxed)) {
        overflowed_.store(true, std::memory_order_relaxed);
    }
    state_.fetch_add(1, std::memory_order_release);
}

std::uint32_t Recorder::add_lane(TraceLane lane) {
    const std::scoped_lock lock(mutex_);
    const auto number = static_cast<std::uint32_t>(lanes_.size());
    if (lane.kind == TraceLane::Kind::communicator) {
        const auto [known, is_new] = communicators_.try_emplace(lane.id, number);
        if (!is_new) return known->second;
    }
    lanes_.push_back(std::move(lane));
    return number;
}

std::uint32_t Recorder::lane_of_this_thread() {
    if (own_lane.recorder != id_) own_lane = {id_, add_lane({})};
    return own_lane.lane;
}

void Recorder::enter_lane(std::uint32_t lane) { own_lane = {id_, lane}; }

std::uint32_t Recorder::name(std::string_view text) {
    const std::scoped_lock lock(mutex_);
    const auto known = numbers_.find(text);
    if (known != numbers_.end()) return known->second;
    const auto number = static_cast<std::uint32_t>(names_.size());
    names_.emplace_back(text);
    numbers_.emplace(names_.back(), number);
    return number;
}

} // namespace hocket
