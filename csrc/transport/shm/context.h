// One rank among all ranks of a job: its arena, its view of the others' arenas, and its staging pool. A rank on another
// host has a mirror here instead of its arena, in which only its presence and its control pages are ever written.
#pragma once

#include "control/control.h"
#include "control/guard.h"
#include "machine/pages.h"
#include "machine/profile.h"
#include "trace/trace.h"
#include "transport/link.h"
#include "transport/shm/arena.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace hocket {

/// Whether a rank can read the private memory of all others.
enum class Attaches : std::uint32_t { unknown, yes, no };

class Context {
  public:
    /// Of staging: 2 MiB, with those that are shared out, and one that is reserved for each peer.
    static constexpr std::size_t most_slots = 16;

    /// Alone, and guarded already: peers that join later find the robust word held. `max_slots`: of the staging pool,
    /// which is smaller where there are many ranks.
    /// `may_attach`: ranks in other processes may read private memory that this one lends to them, and this one reads
    /// theirs.
    /// `recorder`: what this rank does is written down there while it is traced. `link`: paces what its communicators
    /// send, as those of all ranks do.
    explicit Context(std::shared_ptr<Arena> arena, std::size_t max_slots = most_slots, bool may_attach = false,
                     std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>(),
                     std::unique_ptr<Link> link = nullptr);
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    ~Context();

    /// Where this rank's Presence lies in its arena: peers need it to join.
    std::size_t presence_offset() const { return presence_offset_; }

    /// Maps the arenas of all ranks, in order of rank; `descriptors` stay the caller's. All ranks give the same
    /// `profile`. `neighbours`: those that may run on a core of this one; `beside`: those of them that run nowhere
    /// else, as does this one. `far`: those whose cores share no cache with one of this rank's. `elsewhere`: those on
    /// other hosts, of which the leader of this host hears; then `leader_bell` leads to its eventfd, else it is -1, and
    /// `hosts` has the name of each rank's host.
    void join(int rank, std::span<const int> descriptors, std::span<const std::size_t> presence_offsets,
              const Profile &profile, std::span<const int> neighbours, std::span<const int> beside,
              std::span<const int> far, std::span<const int> elsewhere = {}, int leader_bell = -1,
              std::span<const std::string> hosts = {});

    int rank() const { return rank_; }
    int num_ranks() const { return static_cast<int>(ranks_.size()); }
    Arena &arena() { return *arena_; }
    const std::shared_ptr<Recorder> &recorder() const { return recorder_; }
    /// Nothing where it is not paced.
    Link *link() const { return link_.get(); }
    const Profile &profile() const { return profile_; }
    bool shares_cores() const { return profile_.shares_cores; }
    PageMap &page_map() { return page_map_; }

    /// What this rank knows of one of all ranks.
    struct Rank {
        std::shared_ptr<const Mapping> mapping;
        Presence *presence = nullptr;
        bool shares_process = false; // a thread of this process: it may read this rank's memory where it lies
        bool is_neighbour = false, is_beside = false, is_far = false, is_elsewhere = false; // see join()
        pid_t process_id = 0;
        std::string host; // "" where all ranks are on this one

        /// What it has found, as it joined.
        Attaches attaches() const { return static_cast<Attaches>(presence->attaches.load(std::memory_order_acquire)); }
    };
    const Rank &at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
    /// Of the leader of this host; -1 where all ranks are on this host.
    int leader_bell() const { return leader_bell_; }
    const Presence &leader() const { return *std::ranges::find(ranks_, false, &Rank::is_elsewhere)->presence; }
    /// A rank on another host has died, or can no more be reached: all that may wait for it look again.
    void report_death(int rank, bool is_cut_off);

    /// A control page and what follows it in this rank's arena: zero, and in the directory of deaths. Of the reserved
    /// bytes the first `committed` get memory now. It stays an endpoint until all ranks have gone for good, as a
    /// peer that learns of a death late may still raise its alarm; a retired one of the same sizes is used again.
    std::size_t add_endpoint(std::size_t committed, std::size_t reserved);
    /// Its communicator could not be made here: members for which it could see that this one has closed. It is not used
    /// again, as nobody here knows when they are done.
    void abandon_endpoint(std::size_t offset);
    /// How often its page has been used before: members on other hosts have to be told.
    std::uint32_t generation_of(std::size_t offset) const;
    /// Its communicator is closed here. `has_ended` tells once no member uses it any longer, nor reads `slots`, which
    /// then return to the pool.
    void retire_endpoint(std::size_t offset, std::function<bool()> has_ended, std::vector<std::size_t> slots);

    /// A staging slot of `piece_bytes`. Its first `used` bytes were written since its turn came.
    struct Slot {
        std::size_t offset = 0, used = 0;
        bool is_far = false, was_far = false; // another core reads some of it, or did so in the turn before
    };

    /// A slot with room for `num_bytes`, or nothing while all are in use. The pool adds speed; progress does not need
    /// it. Who returns a slot with more used leaves the rest to the next message: so the turn of a byte comes again
    /// only after all others. If it `stays_near`, which is for ranks that share cores: the ranks of a core together
    /// then go over as many bytes as one that is alone, so that these leave the reader's cache, but not the one that
    /// all cores share.
    std::optional<Slot> take_slot(std::size_t num_bytes = piece_bytes, bool stays_near = false);
    /// Whether a message of `num_bytes` goes on in this slot. Any fits into one whose turn has just come.
    bool has_room_left(const Slot &slot, std::size_t num_bytes, bool stays_near) const {
        return slot.used == 0 || slot.used + num_bytes <= (stays_near ? near_bytes_ : piece_bytes);
    }
    void return_slot(Slot slot);
    /// One that its taker keeps until it says so, as its parts go to and fro between it and its peers. Not where the
    /// pool could then no longer have what it has at least.
    std::optional<std::size_t> take_slot_to_share_out();
    /// Of those that were taken these go to the pool, if it may have more; the others do with the endpoint whose slots
    /// they are.
    void end_sharing_out(std::span<const std::size_t> home);

  private:
    struct OwnEndpoint {
        std::size_t offset, committed, reserved;
        std::function<bool()> has_ended; // of a retired one
        std::vector<std::size_t> slots;  // that its members may still read
    };

    std::size_t reserve_endpoint(std::size_t num_bytes);
    void take_back_slots();
    std::optional<std::size_t> allocate_slot();
    void end_sharing_out(std::size_t offset);

    std::shared_ptr<Arena> arena_;
    PageMap page_map_;
    std::shared_ptr<Recorder> recorder_;
    std::size_t presence_offset_ = 0;
    Presence *presence_ = nullptr;
    std::uint64_t token_; // as in `presence_`, in memory that others only reach by attaching
    bool may_attach_;
    std::unique_ptr<Link> link_;
    int rank_ = -1;
    Profile profile_;
    std::vector<Rank> ranks_;
    std::vector<Guard::Rank> ranks_here_; // on this host
    int leader_bell_ = -1;
    std::mutex mutex_; // guards the endpoints and the slots
    std::vector<OwnEndpoint> endpoints_;
    std::size_t num_with_slots_ = 0; // of them, retired, whose members may still read some
    std::size_t max_slots_, room_;   // of the pool; for those that are shared out, too
    std::vector<Slot> free_slots_;   // the next one last
    std::size_t num_slots_ = 0;
    std::set<std::size_t> shared_out_;
    std::atomic<bool> may_share_out_{true}; // more of them
    std::size_t near_bytes_ = piece_bytes;  // of a slot
    OfThisProcess<std::optional<Guard>> guard_;
};

} // namespace hocket
