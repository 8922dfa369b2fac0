#include "mirrors/mirrors.h"

#include "base/error.h"
#include "transport/shm/shm.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <sys/eventfd.h>
#include <unistd.h>

namespace hocket {

constexpr std::size_t most_decisions = 256; // that are remembered
constexpr int most_pages = 128;             // in one part of the news: a link refuses a message that is very long

Mirrors::Mirrors(const std::vector<std::size_t> &capacities) : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (bell_ < 0) throw Failure::resource("eventfd");
    try {
        for (const std::size_t capacity : capacities)
            mirrors_.push_back(capacity == 0 ? nullptr : std::make_unique<Arena>(capacity));
    } catch (...) {
        ::close(bell_);
        throw;
    }
}

Mirrors::~Mirrors() { ::close(bell_); }

int Mirrors::descriptor(int rank) const {
    const auto &arena = mirrors_.at(static_cast<std::size_t>(rank));
    if (!arena) throw Failure::internal("rank " + std::to_string(rank) + " has no mirror: its arena has no bytes");
    return arena->descriptor();
}

/// All control pages of the ranks here.
std::vector<Mirrors::Page> Mirrors::pages() const {
    std::vector<Page> found;
    for (int rank = 0; rank < context_->num_ranks(); ++rank) {
        const Context::Rank &known = context_->at(rank);
        if (known.is_elsewhere) continue;
        for (const auto &entry : known.presence->endpoints) {
            const std::uint64_t offset = entry.load(std::memory_order_acquire);
            if (offset == 0 || !known.mapping->has<ControlPage>(offset)) break;
            found.push_back({.name = {.offset = offset, .rank = rank},
                             .endpoint = known.mapping->base() + offset,
                             .mapping = known.mapping.get()});
        }
    }
    return found;
}

/// No calls where the owner of the page shows a wrong number of members.
std::span<Fingerprint> Mirrors::Page::aborted_calls() const {
    const int num_members = control().num_members.load(std::memory_order_relaxed);
    if (num_members < 1 || num_members > static_cast<int>(AbortRecord::max_members)) return {};
    if (!mapping->has<ControlPage>(name.offset, Endpoint::committed_bytes(num_members))) return {};
    return Endpoint(endpoint, num_members).aborted_calls();
}

std::vector<std::byte> Mirrors::collect(bool thorough) {
    std::vector<std::byte> news;
    int num_told = 0;
    const std::vector<Page> all = pages();
    const auto is_told = [this](const PageName &name, std::uint32_t generation) {
        const auto told = told_.find(name);
        return told == told_.end() || told->second.head.generation == generation;
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Page &page = all[(first_ + i) % all.size()];
        const ControlPage &control = page.control();
        const std::uint64_t communicator = control.name.load(std::memory_order_acquire);
        // Other hosts have nothing to do with the next communicator on a page, but hear that the page has gone to one.
        if (communicator == 0 && is_told(page.name, control.generation.load(std::memory_order_acquire))) continue;
        std::optional<bool> stopped;
        if (thorough) stopped = control.has_stopped_owner(namespace_);
        const std::size_t before = news.size();
        append_news(news, page.name, control, stopped, told_[page.name]);
        const auto decision = std::ranges::find(decisions_, communicator, &Decision::communicator);
        if (decision != decisions_.end()) write(*decision, page);
        if (news.size() == before || ++num_told < most_pages) continue;
        first_ = (first_ + i + 1) % all.size();
        break;
    }
    return news;
}

/// The pages stay known: a communicator that has left one meanwhile is news, too.
void Mirrors::forget_told() {
    for (auto &[name, told] : told_) told = {};
}

/// The mirror of a page; null where there is none, or no memory for it.
ControlPage *Mirrors::mirror_of(const PageName &name) {
    if (name.rank < 0 || name.rank >= static_cast<std::int64_t>(mirrors_.size())) return nullptr;
    const auto &arena = mirrors_[static_cast<std::size_t>(name.rank)];
    if (!arena || !arena->mapping()->has<ControlPage>(name.offset)) return nullptr;
    const Mapping &mapping = *arena->mapping();
    if (!committed_.contains(name)) {
        // A peer that lies could fill the memory page by page.
        if (committed_.size() >= Presence::max_endpoints * mirrors_.size()) return nullptr;
        const std::size_t first = name.offset / page_bytes() * page_bytes();
        try {
            arena->commit(first, round_up(name.offset + sizeof(ControlPage), page_bytes()) - first);
        } catch (const Failure &) { return nullptr; }
        committed_.insert(name);
    }
    return reinterpret_cast<ControlPage *>(mapping.base() + name.offset);
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
    if (awaited.empty()) return;
    for (const Page &page : pages()) {
        if (awaited.contains(page.control().name.load(std::memory_order_acquire))) page.control().raise_alarm();
    }
}

std::vector<std::vector<std::byte>> Mirrors::proposals() {
    std::vector<std::vector<std::byte>> found;
    for (const Page &page : pages()) {
        ControlPage &control = page.control();
        const std::uint64_t name = control.name.load(std::memory_order_acquire);
        if (name == 0 || control.abort.state.load(std::memory_order_acquire) != AbortRecord::proposed) continue;
        if (!proposed_.emplace(page.name, control.generation.load(std::memory_order_acquire)).second) continue;
        found.push_back(encode_reason(name, control.abort, page.aborted_calls()));
    }
    return found;
}

void Mirrors::decide(Bytes reason) {
    const auto name = communicator_of(reason);
    if (!name || *name == 0) return;
    if (std::ranges::find(decisions_, *name, &Decision::communicator) != decisions_.end()) return;
    if (decisions_.size() == most_decisions) decisions_.pop_front();
    decisions_.push_back({.communicator = *name, .reason = {reason.begin(), reason.end()}});
    for (const Page &page : pages()) write(decisions_.back(), page);
}

/// Does nothing if the page is of another communicator, or has a reason, or its owner is about to propose one.
void Mirrors::write(const Decision &decision, const Page &page) {
    ControlPage &control = page.control();
    const auto is_its_page = [&] { return control.name.load(std::memory_order_seq_cst) == decision.communicator; };
    std::atomic<std::uint32_t> &state = control.abort.state;
    std::uint32_t found = state.load(std::memory_order_acquire);
    if (!is_its_page() || (found != AbortRecord::none && found != AbortRecord::proposed)) return;
    if (!state.compare_exchange_strong(found, AbortRecord::agent)) return;
    std::uint32_t taken = AbortRecord::agent;
    if (!is_its_page()) { // it was renewed meanwhile
        state.compare_exchange_strong(taken, found);
        return;
    }
    decode_reason(decision.reason, control.abort, page.aborted_calls());
    if (state.compare_exchange_strong(taken, AbortRecord::ready)) control.raise_alarm();
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
