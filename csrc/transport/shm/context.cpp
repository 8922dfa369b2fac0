#include "transport/shm/context.h"

#include "transport/shm/attach.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <new>
#include <random>
#include <unistd.h>

namespace hocket {
namespace {

constexpr std::size_t least_pool = 7; // slots that are not shared out

/// Process ids repeat between PID namespaces, and a forked child inherits the random part: together they are unique.
std::uint64_t process_token() {
    static const std::uint64_t random = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
    return random ^ static_cast<std::uint64_t>(getpid());
}

} // namespace

Context::Context(std::shared_ptr<Arena> arena, std::size_t max_slots, bool may_attach,
                 std::shared_ptr<Recorder> recorder, std::unique_ptr<Link> link)
    : arena_(std::move(arena)), recorder_(std::move(recorder)), token_(process_token()), may_attach_(may_attach),
      link_(std::move(link)), max_slots_(max_slots), room_(max_slots) {
    presence_offset_ = arena_->allocate(sizeof(Presence));
    presence_ = new (arena_->mapping()->base() + presence_offset_) Presence{};
    presence_->process.store(token_, std::memory_order_relaxed);
    if (may_attach_) {
        permit_attach();
        presence_->process_id.store(getpid(), std::memory_order_relaxed);
        presence_->token_address.store(reinterpret_cast<std::uintptr_t>(&token_), std::memory_order_relaxed);
    }
    guard_->emplace(*presence_);
}

Context::~Context() {
    if (!guard_.is_here()) return; // a forked child: the guard and the shared memory are the parent's
    presence_->state.store(Presence::left, std::memory_order_seq_cst);
    (*guard_)->stop();
    // The last that this rank does in the memory of others.
    for (const Rank &peer : ranks_) {
        if (&peer != &at(rank_)) peer.presence->num_departed.fetch_add(1, std::memory_order_release);
    }
    if (leader_bell_ >= 0) {
        const std::uint64_t one = 1;
        static_cast<void>(::write(leader_bell_, &one, sizeof one)); // it waits for all ranks of its host
        ::close(leader_bell_);
    }
    for (const Slot &slot : free_slots_) arena_->free(slot.offset);
    if (ranks_.empty()) return; // who has joined this rank, which has not joined, is not known: all stays
    std::vector<std::size_t> offsets{presence_offset_};
    for (const OwnEndpoint &own : endpoints_) {
        offsets.push_back(own.offset);
        offsets.insert(offsets.end(), own.slots.begin(), own.slots.end());
    }
    const auto have_departed = [presence = presence_, num_others = ranks_here_.size() - 1] {
        return presence->num_departed.load(std::memory_order_acquire) == num_others;
    };
    arena_->free_once(have_departed, std::move(offsets));
}

void Context::join(int rank, std::span<const int> descriptors, std::span<const std::size_t> presence_offsets,
                   const Profile &profile, std::span<const int> neighbours, std::span<const int> beside,
                   std::span<const int> far, std::span<const int> elsewhere, int leader_bell,
                   std::span<const std::string> hosts) {
    std::vector<Rank> ranks(descriptors.size());
    bool attaches = may_attach_;
    for (const int other : elsewhere) ranks.at(static_cast<std::size_t>(other)).is_elsewhere = true;
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
        Rank &peer = ranks[i];
        if (!hosts.empty()) peer.host = hosts[i];
        peer.mapping = Mapping::of(descriptors[i]);
        if (presence_offsets[i] > peer.mapping->num_bytes() - sizeof(Presence)) {
            throw Failure::internal("rank " + std::to_string(i) + " shows its presence outside of its arena");
        }
        peer.presence = reinterpret_cast<Presence *>(peer.mapping->base() + presence_offsets[i]);
        if (peer.is_elsewhere) continue;
        const std::uint64_t token = peer.presence->process.load(std::memory_order_relaxed);
        peer.shares_process = token == process_token();
        peer.process_id = peer.presence->process_id.load(std::memory_order_relaxed);
        attaches =
            attaches && (peer.shares_process || can_attach(peer.process_id, peer.presence->token_address, token));
    }
    for (const int other : neighbours) ranks.at(static_cast<std::size_t>(other)).is_neighbour = true;
    for (const int other : beside) ranks.at(static_cast<std::size_t>(other)).is_beside = true;
    for (const int other : far) ranks.at(static_cast<std::size_t>(other)).is_far = true;
    const std::size_t num_reserved = std::min(descriptors.size() - 1, most_slots);
    room_ = std::max(most_slots - num_reserved, least_pool);
    max_slots_ = std::min(max_slots_, room_);
    near_bytes_ = piece_bytes / (1 + beside.size());
    rank_ = rank;
    profile_ = profile;
    ranks_ = std::move(ranks);
    presence_->attaches.store(static_cast<std::uint32_t>(attaches ? Attaches::yes : Attaches::no),
                              std::memory_order_release);
    if (leader_bell >= 0) leader_bell_ = fcntl(leader_bell, F_DUPFD_CLOEXEC, 0);
    if (leader_bell >= 0 && leader_bell_ < 0) throw Failure::resource("fcntl");
    std::size_t place = 0;
    for (const Rank &peer : ranks_) {
        if (&peer == &at(rank)) place = ranks_here_.size();
        if (peer.is_elsewhere) continue;
        ranks_here_.push_back({*peer.presence, {peer.mapping->base(), peer.mapping->num_bytes()}});
    }
    (*guard_)->watch(place, ranks_here_, [this] {
        const std::uint64_t one = 1;
        if (leader_bell_ >= 0) static_cast<void>(::write(leader_bell_, &one, sizeof one));
    });
}

void Context::report_death(int rank, bool is_cut_off) {
    std::uint32_t expected = Presence::present;
    at(rank).presence->state.compare_exchange_strong(expected, is_cut_off ? Presence::cut_off : Presence::dead);
    Guard::alarm(ranks_here_);
}

std::size_t Context::add_endpoint(std::size_t committed, std::size_t reserved) {
    const std::scoped_lock lock(mutex_);
    std::byte *base = arena_->mapping()->base();
    const auto fits = [&](const OwnEndpoint &old) {
        return old.committed == committed && old.reserved == reserved && old.has_ended && old.has_ended();
    };
    if (const auto old = std::ranges::find_if(endpoints_, fits); old != endpoints_.end()) {
        take_back_slots();
        old->has_ended = nullptr;
        std::memset(base + old->offset + sizeof(ControlPage), 0, committed - sizeof(ControlPage));
        reinterpret_cast<ControlPage *>(base + old->offset)->renew();
        return old->offset;
    }
    const std::size_t offset = reserve_endpoint(reserved);
    try {
        arena_->commit(offset, committed);
    } catch (...) {
        arena_->free(offset);
        throw;
    }
    new (base + offset) ControlPage{};
    for (auto &entry : presence_->endpoints) {
        std::uint64_t empty = 0;
        if (!entry.compare_exchange_strong(empty, offset)) continue;
        endpoints_.push_back({offset, committed, reserved, nullptr, {}});
        return offset;
    }
    arena_->free(offset);
    errno = ENOSPC;
    throw Failure::resource("opening more than " + std::to_string(Presence::max_endpoints) + " communicators");
}

/// Never at offset 0, which stands for no endpoint where all find those of this rank.
std::size_t Context::reserve_endpoint(std::size_t num_bytes) {
    const std::size_t offset = arena_->reserve(num_bytes);
    if (offset != 0) return offset;
    try {
        const std::size_t another = arena_->reserve(num_bytes);
        arena_->free(0);
        return another;
    } catch (...) {
        arena_->free(0);
        throw;
    }
}

void Context::abandon_endpoint(std::size_t offset) {
    auto *page = reinterpret_cast<ControlPage *>(arena_->mapping()->base() + offset);
    page->state.store(ControlPage::closed, std::memory_order_seq_cst);
}

std::uint32_t Context::generation_of(std::size_t offset) const {
    const auto *page = reinterpret_cast<const ControlPage *>(arena_->mapping()->base() + offset);
    return page->generation.load(std::memory_order_acquire);
}

void Context::retire_endpoint(std::size_t offset, std::function<bool()> has_ended, std::vector<std::size_t> slots) {
    const std::scoped_lock lock(mutex_);
    const auto endpoint = std::ranges::find(endpoints_, offset, &OwnEndpoint::offset);
    endpoint->has_ended = std::move(has_ended);
    endpoint->slots = std::move(slots);
    if (!endpoint->slots.empty()) ++num_with_slots_;
    const auto is_retired = [](const OwnEndpoint &own) { return own.has_ended != nullptr; };
    if (!std::ranges::all_of(endpoints_, is_retired)) return;
    take_back_slots();
    for (const Slot &slot : free_slots_) arena_->free(slot.offset); // nobody is left to stage anything
    num_slots_ -= free_slots_.size();
    free_slots_.clear();
}

/// With the lock held: those of endpoints that have ended. A full pool asks at each turn of a slot, so endpoints are
/// looked at only where some have any.
void Context::take_back_slots() {
    if (num_with_slots_ == 0) return;
    for (OwnEndpoint &own : endpoints_) {
        if (own.slots.empty() || !own.has_ended()) continue;
        for (const std::size_t offset : own.slots) {
            if (shared_out_.contains(offset)) end_sharing_out(offset);
            else free_slots_.push_back({.offset = offset});
        }
        own.slots.clear();
        --num_with_slots_;
    }
}

/// With the lock held: one more, if there is room. Without memory for more, those that are there have to do.
std::optional<std::size_t> Context::allocate_slot() {
    const auto is_full = [this] { return num_slots_ + shared_out_.size() >= room_; };
    if (is_full()) take_back_slots();
    if (is_full()) return std::nullopt;
    try {
        return arena_->allocate(piece_bytes);
    } catch (const Failure &) { room_ = num_slots_ + shared_out_.size(); }
    return std::nullopt;
}

std::optional<Context::Slot> Context::take_slot(std::size_t num_bytes, bool stays_near) {
    const std::scoped_lock lock(mutex_);
    bool wants_another = free_slots_.empty();
    for (; !free_slots_.empty() && !has_room_left(free_slots_.back(), num_bytes, stays_near); wants_another = true) {
        Slot &slot = free_slots_.back();
        slot = {.offset = slot.offset, .was_far = slot.is_far};
        std::ranges::rotate(free_slots_, std::prev(free_slots_.end()));
    }
    if (wants_another && num_slots_ < max_slots_) {
        if (const auto offset = allocate_slot()) {
            free_slots_.push_back({.offset = *offset});
            ++num_slots_;
        }
    }
    if (free_slots_.empty()) take_back_slots();
    if (free_slots_.empty()) return std::nullopt;
    Slot slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
}

std::optional<std::size_t> Context::take_slot_to_share_out() {
    if (!may_share_out_.load(std::memory_order_relaxed)) return std::nullopt; // as for most that ask: no lock
    const std::scoped_lock lock(mutex_);
    const auto leaves_too_few = [this] { return room_ - shared_out_.size() <= least_pool; };
    if (leaves_too_few()) take_back_slots();
    if (leaves_too_few()) {
        may_share_out_.store(false, std::memory_order_relaxed);
        return std::nullopt;
    }
    auto offset = allocate_slot();
    if (!offset && !free_slots_.empty() && !leaves_too_few()) {
        offset = free_slots_.front().offset; // whose turn is last
        free_slots_.erase(free_slots_.begin());
        --num_slots_;
    }
    if (offset) shared_out_.insert(*offset);
    return offset;
}

/// With the lock held.
void Context::end_sharing_out(std::size_t offset) {
    shared_out_.erase(offset);
    may_share_out_.store(true, std::memory_order_relaxed);
    if (num_slots_ == max_slots_) return arena_->free(offset);
    free_slots_.push_back({.offset = offset});
    ++num_slots_;
}

void Context::end_sharing_out(std::span<const std::size_t> home) {
    const std::scoped_lock lock(mutex_);
    for (const std::size_t offset : home) end_sharing_out(offset);
}

void Context::return_slot(Slot slot) {
    const std::scoped_lock lock(mutex_);
    free_slots_.push_back(slot);
}

} // namespace hocket
