// The part of the leader of a host in what ranks on several hosts know of each other: it reads what the ranks here have
// written down, for other hosts, and writes what it hears of ranks there on mirrors, which all ranks here read.
#pragma once

#include "control/news.h"
#include "transport/shm/arena.h"
#include "transport/shm/context.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace hocket {

/// Used by one thread, once it has joined its context.
class Mirrors {
  public:
    /// `capacities`: by rank of the job, of the arenas of ranks on other hosts; 0 for ranks here.
    explicit Mirrors(const std::vector<std::size_t> &capacities);
    Mirrors(const Mirrors &) = delete;
    Mirrors &operator=(const Mirrors &) = delete;
    ~Mirrors();

    /// Of the mirror of a rank on another host, instead of the descriptor of its arena.
    int descriptor(int rank) const { return mirrors_.at(static_cast<std::size_t>(rank))->descriptor(); }
    /// The eventfd that all ranks here ring: see Spanning.
    int bell() const { return bell_; }
    void join(std::shared_ptr<Context> context) { context_ = std::move(context); }

    /// What ranks here have written since the last time. `thorough`: whether their processes are stopped, too.
    std::vector<std::byte> collect(bool thorough);
    /// News of other hosts; what is malformed, or of no rank there, is dropped. `wakes`: ranks here that wait look again
    /// whatever it says.
    void apply(Bytes news, bool wakes);

    /// Reasons that ranks here have proposed since the last time.
    std::vector<std::vector<std::byte>> proposals();
    /// Writes the reason that was first on the pages of its communicator here.
    void decide(Bytes reason);

    /// The ranks here that have died since the last time.
    std::vector<int> deaths();
    /// How many other ranks here still live, and have not left the job.
    int num_present() const;

  private:
    struct Page {
        PageName name;
        std::byte *endpoint;
        ControlPage &control() const { return *reinterpret_cast<ControlPage *>(endpoint); }
    };

    std::vector<Page> pages() const;
    ControlPage *mirror_of(const PageName &name);
    void alarm(std::uint64_t communicator) const;

    std::vector<std::unique_ptr<Arena>> mirrors_; // null for ranks here
    int bell_ = -1;
    std::shared_ptr<Context> context_;
    std::map<PageName, Told> told_;
    std::set<PageName> committed_; // mirrored pages that have memory
    std::set<std::tuple<PageName, std::uint32_t>> proposed_; // with the generation of the page
    std::set<int> dead_;
};

} // namespace hocket
