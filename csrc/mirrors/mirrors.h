// What the leader of a host does so that ranks on several hosts know of each other. It reads, for other hosts, what the
// ranks here have written down. It writes what it hears of ranks elsewhere on mirrors, which all ranks here read.
#pragma once

#include "control/news.h"
#include "transport/shm/arena.h"
#include "transport/shm/context.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
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

    /// The mirror of a rank on another host; ranks here take it for the descriptor of its arena.
    int descriptor(int rank) const;
    /// The eventfd that all ranks here ring: see Spanning.
    int bell() const { return bell_; }
    void join(std::shared_ptr<Context> context) { context_ = std::move(context); }

    /// What ranks here have written since the last time; where that is very much, the rest comes next time. `thorough`:
    /// also whether their processes are stopped.
    std::vector<std::byte> collect(bool thorough);
    /// A host has missed some of it: the next collect() tells everything.
    void forget_told();
    /// News of other hosts; what is malformed, or of no rank there, is dropped. `wakes`: ranks here that wait look
    /// again whatever it says.
    void apply(Bytes news, bool wakes);

    /// Reasons that ranks here have proposed since the last time.
    std::vector<std::vector<std::byte>> proposals();
    /// Writes the reason that was first on the pages of its communicator here. Where a rank is about to propose one, or
    /// is yet to make its communicator, a later collect() does.
    void decide(Bytes reason);

    /// The ranks here that have died since the last time.
    std::vector<int> deaths();
    /// The number of other ranks here that live, and have not left the job.
    int num_present() const;

  private:
    struct Page {
        PageName name;
        std::byte *endpoint;
        const Mapping *mapping;
        ControlPage &control() const { return *reinterpret_cast<ControlPage *>(endpoint); }
        std::span<Fingerprint> aborted_calls() const;
    };
    struct Decision {
        std::uint64_t communicator;
        std::vector<std::byte> reason;
    };

    std::vector<Page> pages() const;
    static void write(const Decision &decision, const Page &page);
    ControlPage *mirror_of(const PageName &name);

    std::vector<std::unique_ptr<Arena>> mirrors_; // null for ranks here
    int bell_ = -1;
    std::shared_ptr<Context> context_;
    std::uint64_t namespace_ = process_namespace();
    std::map<PageName, Told> told_;
    std::size_t first_ = 0; // of the pages, the one that collect() looks at first
    std::deque<Decision> decisions_;
    std::set<PageName> committed_;                           // mirrored pages that have memory
    std::set<std::tuple<PageName, std::uint32_t>> proposed_; // with the generation of the page
    std::set<int> dead_;
};

} // namespace hocket
