#include "control/control.h"

#include "base/waiting.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace hocket {
namespace {

std::int32_t high(std::uint64_t both) { return static_cast<std::int32_t>(both >> 32); }
std::int32_t low(std::uint64_t both) { return static_cast<std::int32_t>(both & 0xffffffffU); }

} // namespace

void CallRecord::write(const Fingerprint &call, SiteOfCall site) {
    // Readers in between see sequence 0. Release keeps each field behind the 0, and the last store publishes them.
    sequence_.store(0, std::memory_order_relaxed);
    count_.store(call.count, std::memory_order_release);
    schedule_.store(call.schedule, std::memory_order_release);
    detail_.store(call.detail, std::memory_order_release);
    const auto at = static_cast<std::int32_t>(site.number << 1 | (site.is_repeated ? 1U : 0U));
    site_kind_dtype_.store(pair_of(at, call.kind << 16 | call.dtype), std::memory_order_release);
    op_root_.store(pair_of(call.op, call.root), std::memory_order_release);
    sequence_.store(call.sequence, std::memory_order_release);
}

std::optional<std::pair<Fingerprint, SiteOfCall>> CallRecord::read(std::uint64_t sequence) const {
    if (sequence == 0 || sequence_.load(std::memory_order_seq_cst) != sequence) return std::nullopt;
    Fingerprint call{.sequence = sequence};
    call.count = count_.load(std::memory_order_acquire);
    call.schedule = schedule_.load(std::memory_order_acquire);
    call.detail = detail_.load(std::memory_order_acquire);
    const std::uint64_t site_kind_dtype = site_kind_dtype_.load(std::memory_order_acquire);
    const std::uint64_t op_root = op_root_.load(std::memory_order_acquire);
    // A writer that came in between has already stored another sequence, which the acquires above make visible.
    if (sequence_.load(std::memory_order_acquire) != sequence) return std::nullopt;
    call.kind = low(site_kind_dtype) >> 16;
    call.dtype = low(site_kind_dtype) & 0xffff;
    call.op = high(op_root);
    call.root = low(op_root);
    const auto at = static_cast<std::uint32_t>(high(site_kind_dtype));
    return std::pair(call, SiteOfCall{at >> 1, (at & 1) != 0});
}

std::optional<CallRecord::Words> CallRecord::words(std::uint64_t sequence) const {
    if (sequence == 0 || sequence_.load(std::memory_order_acquire) != sequence) return std::nullopt;
    const Words found{sequence,
                      count_.load(std::memory_order_acquire),
                      schedule_.load(std::memory_order_acquire),
                      detail_.load(std::memory_order_acquire),
                      site_kind_dtype_.load(std::memory_order_acquire),
                      op_root_.load(std::memory_order_acquire)};
    if (sequence_.load(std::memory_order_acquire) != sequence) return std::nullopt;
    return found;
}

void CallRecord::mirror(const Words &words) {
    sequence_.store(0, std::memory_order_relaxed);
    count_.store(words[1], std::memory_order_release);
    schedule_.store(words[2], std::memory_order_release);
    detail_.store(words[3], std::memory_order_release);
    site_kind_dtype_.store(words[4], std::memory_order_release);
    op_root_.store(words[5], std::memory_order_release);
    sequence_.store(words[0], std::memory_order_release);
}

void SiteRecord::write(const Site &site) {
    std::array<char, num_words * sizeof(std::uint64_t)> text{};
    const std::string_view all = site.text, kept = all.substr(all.size() - std::min(all.size(), text.size()));
    std::ranges::copy(kept, text.begin());
    number_.store(0, std::memory_order_relaxed);
    for (std::size_t i = 0; i < num_words; ++i) {
        std::uint64_t word = 0;
        std::memcpy(&word, &text[i * sizeof word], sizeof word);
        words_[i].store(word, std::memory_order_release);
    }
    number_.store(site.number, std::memory_order_release);
}

std::string SiteRecord::read(std::uint32_t number) const {
    if (number == 0 || number_.load(std::memory_order_acquire) != number) return "";
    std::array<char, num_words * sizeof(std::uint64_t)> text{};
    for (std::size_t i = 0; i < num_words; ++i) {
        const std::uint64_t word = words_[i].load(std::memory_order_acquire);
        std::memcpy(&text[i * sizeof word], &word, sizeof word);
    }
    if (number_.load(std::memory_order_acquire) != number) return "";
    return {text.data(), strnlen(text.data(), text.size())};
}

void ProgressRecord::write(std::uint64_t word, std::chrono::nanoseconds age) {
    const std::int64_t first = places_[0].at.load(std::memory_order_relaxed),
                       second = places_[1].at.load(std::memory_order_relaxed),
                       at = (Clock::now().time_since_epoch() - age) / std::chrono::nanoseconds(1);
    Place &place = places_[first > second ? 1 : 0];
    // As in a CallRecord; its time stands for the sequence.
    place.at.store(0, std::memory_order_relaxed);
    place.word.store(word, std::memory_order_release);
    place.at.store(std::max(at, std::max(first, second) + 1), std::memory_order_release);
}

ProgressRecord::Note ProgressRecord::read() const {
    for (;;) {
        const std::int64_t first = places_[0].at.load(std::memory_order_acquire),
                           second = places_[1].at.load(std::memory_order_acquire);
        const Place &place = places_[first > second ? 0 : 1];
        const Note found{.at = std::max(first, second), .word = place.word.load(std::memory_order_acquire)};
        if (place.at.load(std::memory_order_acquire) != found.at) continue; // it was written over
        return found.at == 0 ? Note() : found;
    }
}

std::optional<Fingerprint> ControlPage::call_of(std::uint64_t sequence) const {
    const auto noted = calls[sequence % history].read(sequence);
    return noted ? std::optional(noted->first) : std::nullopt;
}

std::string ControlPage::site_of(std::uint64_t sequence) const {
    const auto noted = calls[sequence % history].read(sequence);
    if (!noted) return "";
    const SiteOfCall at = noted->second;
    std::string text = sites[at.number % num_sites].read(at.number);
    return text.empty() || !at.is_repeated ? text : text + ", repeated";
}

void ControlPage::renew() {
    clear();
    // Members of the old communicator may still ask whether this one has left it: they know by the generation.
    generation.fetch_add(1, std::memory_order_seq_cst);
    state.store(open, std::memory_order_seq_cst);
}

void ControlPage::clear() {
    name.store(0, std::memory_order_seq_cst);
    state.store(renewing, std::memory_order_seq_cst);
    num_members.store(0, std::memory_order_relaxed);
    is_stopped.store(0, std::memory_order_relaxed);
    // All of this is atomic.
    constexpr std::size_t begin = offsetof(ControlPage, in_call), end = offsetof(ControlPage, abort);
    static_assert(begin % sizeof(std::uint64_t) == 0 && end % sizeof(std::uint64_t) == 0);
    auto *const words = reinterpret_cast<std::uint64_t *>(this);
    for (std::size_t i = begin / sizeof *words; i < end / sizeof *words; ++i)
        std::atomic_ref(words[i]).store(0, std::memory_order_relaxed);
    abort.proposed_at.store(0, std::memory_order_relaxed);
    // The leader takes no page that has lost its name. Where it has just taken this one, it may still write the record.
    if (abort.state.exchange(AbortRecord::none, std::memory_order_seq_cst) == AbortRecord::agent) return;
    constexpr std::size_t record = offsetof(ControlPage, abort) + offsetof(AbortRecord, cause);
    std::memset(reinterpret_cast<std::byte *>(this) + record, 0, sizeof(ControlPage) - record);
}

bool ControlPage::has_stopped_owner(std::uint64_t own_namespace) const {
    const pid_t id = process.load(std::memory_order_acquire);
    // In a container of its own, the same id is another process here.
    return process_namespace.load(std::memory_order_relaxed) == own_namespace && hocket::is_stopped(id);
}

} // namespace hocket
