// Ranks as processes that the test forks. ThreadSanitizer sees one process only, and refuses threads after a fork.
#pragma once

#include "world.h"

#include <array>
#include <functional>
#include <string>

namespace hocket::test {

/// Data that the processes share with each other and the test.
struct Board {
    static constexpr std::size_t max_ranks = 8;

    std::array<std::atomic<int>, max_ranks> process, descriptor; // of each rank's arena
    std::array<std::atomic<std::uint64_t>, max_ranks> presence;  // an offset
    std::array<std::atomic<std::uint64_t>, max_ranks> endpoint;  // of the next communicator
    std::array<std::atomic<std::int64_t>, max_ranks> killed_at;  // steady clock; 0: not killed
    std::array<std::atomic<int>, max_ranks> reported;            // the rank that a survivor was told of, + 1
    std::atomic<int> num_met;                                    // in total
    std::atomic<int> num_done;                                   // with what the test counts
    std::array<std::array<char, 400>, max_ranks> complaint;

    /// Waits until all `num_ranks` processes have called this.
    void meet(int num_ranks);
};

/// Nanoseconds of the steady clock, which processes share.
std::int64_t now();

class Processes {
  public:
    using Body = std::function<void(Rank &, Board &)>;

    /// Runs `body` in one process for each rank and waits for all; throws what the first rank complains of.
    Processes(int num_ranks, const Body &body, const WorldOptions &options = {});
    Processes(const Processes &) = delete;
    Processes &operator=(const Processes &) = delete;
    ~Processes();

    Board &board() { return *board_; }

  private:
    [[noreturn]] void live(int rank, const Body &body);
    void join(Rank &own);

    int num_ranks_;
    WorldOptions options_;
    Board *board_ = nullptr;
};

/// Ends this rank's process without notice.
[[noreturn]] void die(const Rank &rank, Board &board);

} // namespace hocket::test
