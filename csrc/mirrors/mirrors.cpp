#include "mirrors/mirrors.h"

#include "base/error.h"
#include "base/waiting.h"
#include "transport/shm/shm.h"

#include <chrono>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace hocket {

constexpr std::chrono::milliseconds writer_time{200}; // for a rank to write the reason that it has begun to write

Mirrors::Mirrors(const std::vector<std::size_t> &capacities) : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (bell_ < 0) throw Failure::resource("eventfd");
    for (const std::size_t capacity : capacities)
        mirrors_.push_back(capacity == 0 ? nullptr : std::make_unique<Arena>(capacity));
}

Mirrors::~Mirrors() { ::close(bell_); }

/// Those of ranks here, of communicators that are on several hosts, or were.
std::vector<Mirrors::Page> Mirrors::pages() const {
    std::vector<Page> found;
    for (int rank = 0; rank < context_->num_ranks(); ++rank) {
        const Context::Rank &known = context_->at(rank);
        if (known.is_elsewhere) continue;
        for (const auto &entry : known.presence->endpoints) {
            const std::uint64_t offset = entry.load(std::memory_order_acquire);
            if (offset == 0 || offset > known.mapping->num_bytes() - sizeof(ControlPage)) break;
            found.push_back({.name = {.offset = offset, .rank = rank}, .endpoint = known.mapping->base() + offset});
        }
    }
    return found;
}

std::vector<std::byte> Mirrors::collect(bool thorough) {
    std::vector<std::byte> news;
    for (const Page &page : pages()) {
        const ControlPage &control = page.control();
        if (control.name.load(std::memory_order_acquire) == 0 && !told_.contains(page.name)) continue;
        std::optional<bool> stopped;
        if (thorough) stopped = is_stopped(control.process.load(std::memory_order_acquire));
        append_news(news, page.name, control, stopped, told_[page.name]);
    }
    return news;
}

/// Null where there is none, or no memory for it.
ControlPage *Mirrors::mirror_of(const PageName &name) {
    if (name.rank < 0 || name.rank >= static_cast<std::int64_t>(mirrors_.size())) return nullptr;
    const auto &arena = mirrors_[static_cast<std::size_t>(name.rank)];
    if (!arena || name.offset % alignof(ControlPage) != 0) return nullptr;
    const Mapping &mapping = *arena->mapping();
    if (name.offset > mapping.num_bytes() - sizeof(ControlPage)) return nullptr;
    if (!committed_.contains(name)) {
        // A peer that lies could fill our memory page by page.
        if (committed_.size() >= Presence::max_endpoints * mirrors_.size()) return nullptr;
        const std::size_t first = name.offset / page_bytes() * page_bytes();
        try {
            arena->commit(first, round_up(name.offset + sizeof(ControlPage), page_bytes()) - first);
        } catch (const Failure &) { return nullptr; }
        committed_.insert(name);
    }
    return reinterpret_cast<ControlPage *>(mapping.base() + name.offset);
}

void Mirrors::alarm(std::uint64_t communicator) const {
    for (const Page &page : pages()) {
        if (page.control().name.load(std::memory_order_acquire) == communicator) page.control().raise_alarm();
    }
}

void Mirrors::apply(Bytes news, bool wakes) {
    std::set<std::uint64_t> awaited;
    while (const auto page = take_page(news)) {
        ControlPage *const control = mirror_of(page->head.page);
        if (control == nullptr) continue;
        const std::uint64_t before = control->name.load(std::memory_order_acquire);
        if (!mirror(*page, *control) && !wakes) continue;
        awaited.insert({before, page->head.name});
    }
    awaited.erase(0);
    for (const std::uint64_t communicator : awaited) alarm(communicator);
}

std::vector<std::vector<std::byte>> Mirrors::proposals() {
    std::vector<std::vector<std::byte>> found;
    for (const Page &page : pages()) {
        ControlPage &control = page.control();
        const std::uint64_t name = control.name.load(std::memory_order_acquire);
        if (name == 0 || control.abort.state.load(std::memory_order_acquire) != AbortRecord::proposed) continue;
        if (!proposed_.emplace(page.name, control.generation.load(std::memory_order_acquire)).second) continue;
        const Endpoint endpoint(page.endpoint, control.num_members.load(std::memory_order_relaxed));
        found.push_back(encode_reason(name, control.abort, endpoint.aborted_calls()));
    }
    return found;
}

void Mirrors::decide(Bytes reason) {
    const auto name = communicator_of(reason);
    if (!name || *name == 0) return;
    for (const Page &page : pages()) {
        ControlPage &control = page.control();
        if (control.name.load(std::memory_order_acquire) != *name) continue;
        AbortRecord &record = control.abort;
        std::uint32_t state = record.state.load(std::memory_order_acquire);
        const auto limit = Clock::now() + writer_time;
        for (;; state = record.state.load(std::memory_order_acquire)) {
            if (state == AbortRecord::ready || Clock::now() >= limit) break;
            if (state >= AbortRecord::writing) sched_yield(); // its owner is about to propose one
            else if (record.state.compare_exchange_strong(state, AbortRecord::agent)) break;
        }
        if (state != AbortRecord::none && state != AbortRecord::proposed) continue;
        const Endpoint endpoint(page.endpoint, control.num_members.load(std::memory_order_relaxed));
        decode_reason(reason, record, endpoint.aborted_calls());
        record.state.store(AbortRecord::ready, std::memory_order_seq_cst);
        control.raise_alarm();
    }
}

std::vector<int> Mirrors::deaths() {
    std::vector<int> found;
    for (int rank = 0; rank < context_->num_ranks(); ++rank) {
        const Context::Rank &known = context_->at(rank);
        if (!known.is_elsewhere && known.presence->is_dead() && dead_.insert(rank).second) found.push_back(rank);
    }
    return found;
}

int Mirrors::num_present() const {
    int found = 0;
    for (int rank = 0; rank < context_->num_ranks(); ++rank) {
        const Context::Rank &known = context_->at(rank);
        const bool is_here = !known.is_elsewhere && rank != context_->rank();
        if (is_here && known.presence->state.load(std::memory_order_acquire) == Presence::present) ++found;
    }
    return found;
}

} // namespace hocket
