// Ranks as threads of this process, each with its own arena, context and communicators: the real path, except that
// descriptors and offsets are passed directly.
#pragma once

#include "communicator/communicator.h"
#include "fixtures.h"
#include "hosts.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

namespace hocket::test {

inline constexpr std::chrono::seconds patience{120}; // for events that must not fail to come; ranks share few cores

/// The memory of a test's arrays: the heap, their own huge or small pages, or the rank's arena.
enum class Memory { owned, huge, small, registered };

/// Memory of one call, freed as soon as the call is left, so that sanitizers see a late reader. Notices writes behind
/// its end.
class Buffer {
  public:
    Buffer(const std::shared_ptr<Arena> &arena, Memory memory, std::size_t num_bytes);
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer();

    std::byte *data() const { return data_; }
    Bytes bytes() const { return {data_, num_bytes_}; }
    bool is_intact() const;

  private:
    std::shared_ptr<Arena> arena_; // of registered memory
    std::size_t offset_ = 0;
    std::unique_ptr<std::byte[]> owned_;
    std::unique_ptr<void, std::function<void(void *)>> mapped_;
    std::byte *data_ = nullptr;
    std::size_t num_bytes_ = 0;
};

/// Skips a test that needs huge or small pages if it gets others, or if the system does not tell.
void need(Pages pages, const Buffer &memory);

/// The thresholds of a named processor whose cores have 1 MiB of cache each; worlds have that with string moves.
Profile measured(bool shares_cores, std::string_view name = "intel");

struct Rank {
    int rank = 0;
    std::shared_ptr<Arena> arena;
    std::shared_ptr<Context> context;
    std::vector<std::unique_ptr<Communicator>> communicators;

    Communicator &communicator() { return *communicators.front(); }
};

struct WorldOptions {
    int num_communicators = 1;
    bool spin = false;
    /// Ranks act like processes, so private memory is staged instead of lent.
    bool as_processes = false;
    /// Ranks that act like processes may attach to each other.
    bool may_attach = false;
    /// The cores of ranks share no cache.
    bool is_far = false;
    /// The processor and its caches, whatever this machine's are.
    std::optional<Profile> profile{};
    /// Slots of the staging pool that a rank's communicators share.
    std::size_t max_slots = 8;
    /// The rate of a paced link of each rank; 0: they have none.
    double bytes_per_second = 0;
    std::chrono::nanoseconds latency{0};
    /// Ranks are joined by sockets of the system, which somebody connects when they are wanted.
    bool over_connections = false;
    int num_rails = 1;
    /// The number of ranks on each host, where they are on several: then connections carry what goes to other hosts.
    std::vector<int> hosts{};
};

/// Connects the ranks of a world when they want it, in a thread of its own.
class Switchboard {
  public:
    Switchboard(int num_ranks, bool carry_all, int num_rails);
    Switchboard(const Switchboard &) = delete;
    Switchboard &operator=(const Switchboard &) = delete;
    ~Switchboard();

    const std::shared_ptr<Connections> &of(int rank) const { return ends_[static_cast<std::size_t>(rank)]; }

  private:
    void run();

    std::vector<std::shared_ptr<Connections>> ends_;
    int stop_ = -1;
    std::thread thread_;
};

class World {
  public:
    explicit World(int num_ranks, WorldOptions options = {});

    int size() const { return static_cast<int>(ranks_.size()); }
    Rank &operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    Hosts &hosts() { return *hosts_; }
    /// Nothing where all ranks share memory.
    std::shared_ptr<Connections> connections(int rank) const {
        return switchboard_ ? switchboard_->of(rank) : std::shared_ptr<Connections>();
    }

    /// Runs `body` on one thread for each rank and throws the first exception of a rank. Such a rank aborts its
    /// communicators first, so the others end.
    void run(const std::function<void(Rank &)> &body);

    /// Waits until all ranks have called this; a check fails if one cannot any more.
    void meet();

    /// Whether a rank has thrown an exception: a wait without a communicator must check it.
    bool has_failed() const { return failed_.load(); }

  private:
    std::unique_ptr<Switchboard> switchboard_;
    std::unique_ptr<Hosts> hosts_;
    std::vector<Rank> ranks_;
    std::atomic<bool> failed_{false};
    std::atomic<int> num_met_{0}; // in total
};

void do_nothing();

/// The transport of a rank's collectives.
ShmTransport &transport_of(World &world, int rank);
/// Bytes that count up from `first`.
std::vector<std::byte> counted(std::size_t num_bytes, std::size_t first = 0);

/// A call of this fixture by one rank, which can be changed before it runs.
Call call_of(const Fixture &fixture, int rank, Dtype dtype, Op op, std::size_t block, const std::byte *input,
             std::byte *output);

/// The memory of one rank for one case, with its input.
class Operands {
  public:
    Operands(const Fixture &fixture, const Case &run, Rank &rank, Memory input, Memory output);

    Call call() const;
    const std::byte *input() const { return input_; }
    std::byte *output() const { return output_; }
    /// Checks that the output is right to the bit, an unaliased input is unchanged, and nothing else was written.
    void check(const char *where) const;

  private:
    const Fixture &fixture_;
    const Case &run_;
    int rank_;
    std::vector<std::uint64_t> input_counts_, output_counts_; // elements of each block
    std::size_t input_bytes_, output_bytes_;
    std::unique_ptr<Buffer> first_, second_;
    std::byte *input_ = nullptr, *output_ = nullptr;
    std::uint64_t input_digest_ = 0;
};

/// Runs all fixtures of so many ranks, one after the other, in private and in registered memory by turns.
void run_fixtures(Rank &rank);

/// The error of a call, or of close(); nothing if it succeeded.
std::optional<Failure> failure_of(const std::function<void()> &action);
/// The error that ended a work.
std::optional<Failure> failure_of(const Work &work);

} // namespace hocket::test
