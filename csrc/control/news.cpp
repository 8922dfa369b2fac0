#include "control/news.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace hocket {
namespace {

constexpr auto notes_pause = attention / 2; // between news of notes alone: shorter than a question lasts

static_assert(std::has_unique_object_representations_v<NewsHead>); // so no byte that travels is undefined

struct SiteNews {
    std::uint32_t number = 0;
    std::array<char, 124> text{};
};

struct ReasonHead {
    std::uint64_t name = 0, sequence = 0;
    double seconds = 0;
    std::int32_t cause = 0, rank = 0;
    std::array<std::uint64_t, AbortRecord::max_members / 64> missing{};
    std::array<char, AbortRecord::max_text> text{};
    std::uint64_t num_calls = 0;
};

struct ReasonCall {
    std::uint64_t member = 0;
    Fingerprint call;
};

template <typename Part> void append(std::vector<std::byte> &to, const Part &part) {
    to.resize(to.size() + sizeof part);
    std::memcpy(to.data() + to.size() - sizeof part, &part, sizeof part);
}

template <typename Part> Part at(Bytes bytes, std::size_t number) {
    Part part;
    std::memcpy(&part, bytes.data() + number * sizeof part, sizeof part);
    return part;
}

} // namespace

void append_news(std::vector<std::byte> &news, const PageName &name, const ControlPage &page,
                 std::optional<bool> is_stopped, Told &told) {
    NewsHead head;
    head.page.offset = name.offset;
    head.page.rank = name.rank;
    head.generation = page.generation.load(std::memory_order_acquire);
    head.state = page.state.load(std::memory_order_acquire);
    if (head.state == ControlPage::renewing) return; // the next look finds what comes
    const bool is_another = head.generation != told.head.generation;
    if (is_another) told = {};
    head.is_stopped = is_stopped ? static_cast<std::uint32_t>(*is_stopped) : told.head.is_stopped;
    head.waits_for = page.waits_for.load(std::memory_order_acquire);
    head.name = page.name.load(std::memory_order_acquire);
    head.last_call = page.last_call.load(std::memory_order_acquire);
    head.in_call = page.in_call.load(std::memory_order_acquire);
    head.in_messages = page.in_messages.load(std::memory_order_acquire);
    head.gave_up = page.gave_up.load(std::memory_order_acquire);
    head.waits_in = page.waits_in.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < head.digests.size(); ++i)
        head.digests[i] = page.digests[i].load(std::memory_order_relaxed);
    const ProgressRecord::Note note = page.progress.read();
    const auto now = Clock::now();
    head.progress = note.word;
    head.noted_at = note.at;
    head.note_age = now.time_since_epoch() / std::chrono::nanoseconds(1) - note.at;
    const std::uint64_t last_told = told.head.last_call;
    NewsHead before = told.head;
    before.num_calls = before.num_sites = 0;
    if (!is_stopped || now - told.at < notes_pause) before.noted_at = head.noted_at;
    before.progress = head.progress;
    before.note_age = head.note_age;
    if (!is_another && head == before) return;
    const std::size_t begin = news.size();
    append(news, head);
    const std::uint64_t oldest = head.last_call - std::min<std::uint64_t>(head.last_call, ControlPage::history - 1);
    for (std::uint64_t call = std::max(last_told + 1, oldest); call <= head.last_call; ++call) {
        const auto words = page.calls[call % ControlPage::history].words(call);
        if (!words) continue; // it has been written over
        append(news, *words);
        ++head.num_calls;
    }
    for (std::size_t i = 0; i < page.sites.size(); ++i) {
        SiteNews site;
        site.number = page.sites[i].number();
        if (site.number == told.sites[i]) continue;
        const std::string text = page.sites[i].read(site.number);
        if (text.empty()) continue;
        std::copy_n(text.data(), std::min(text.size(), site.text.size()), site.text.data());
        append(news, site);
        ++head.num_sites;
        told.sites[i] = site.number;
    }
    if (page.generation.load(std::memory_order_acquire) != head.generation) { // it was renewed meanwhile
        news.resize(begin);
        told = {};
        return;
    }
    std::memcpy(news.data() + begin, &head, sizeof head);
    told.head = head;
    told.at = now;
}

std::optional<PageNews> take_page(Bytes &news) {
    if (news.size() < sizeof(NewsHead)) return std::nullopt;
    PageNews found{.head = at<NewsHead>(news, 0), .calls = {}, .sites = {}};
    news = news.subspan(sizeof(NewsHead));
    if (found.head.num_calls > ControlPage::history || found.head.num_sites > ControlPage::num_sites)
        return std::nullopt;
    const std::size_t num_call_bytes = found.head.num_calls * sizeof(CallRecord::Words),
                      num_site_bytes = found.head.num_sites * sizeof(SiteNews);
    if (news.size() < num_call_bytes + num_site_bytes) return std::nullopt;
    found.calls = news.first(num_call_bytes);
    found.sites = news.subspan(num_call_bytes, num_site_bytes);
    news = news.subspan(num_call_bytes + num_site_bytes);
    return found;
}

bool mirror(const PageNews &news, ControlPage &page) {
    const NewsHead &head = news.head;
    const std::uint32_t known = page.generation.load(std::memory_order_relaxed);
    if (static_cast<std::int32_t>(head.generation - known) < 0) return false;
    if (head.generation != known) page.clear(); // the members that read it have left
    const bool ends_waits = page.gave_up.load(std::memory_order_relaxed) != head.gave_up || head.generation != known;
    for (std::size_t i = 0; i < head.num_calls; ++i) {
        const auto words = at<CallRecord::Words>(news.calls, i);
        page.calls[words[0] % ControlPage::history].mirror(words);
    }
    for (std::size_t i = 0; i < head.num_sites; ++i) {
        const auto site = at<SiteNews>(news.sites, i);
        page.sites[site.number % ControlPage::num_sites].write(
            {.number = site.number, .text = {site.text.data(), strnlen(site.text.data(), site.text.size())}});
    }
    for (std::size_t i = 0; i < head.digests.size(); ++i)
        page.digests[i].store(head.digests[i], std::memory_order_relaxed);
    if (head.noted_at != 0)
        page.progress.write(head.progress, std::chrono::nanoseconds(std::max<std::int64_t>(head.note_age, 0)));
    page.is_stopped.store(head.is_stopped, std::memory_order_relaxed);
    page.waits_for.store(head.waits_for, std::memory_order_release);
    page.waits_in.store(head.waits_in, std::memory_order_release);
    page.in_call.store(head.in_call, std::memory_order_release);
    page.in_messages.store(head.in_messages, std::memory_order_release);
    page.gave_up.store(head.gave_up, std::memory_order_seq_cst);
    page.last_call.store(head.last_call, std::memory_order_seq_cst);
    page.name.store(head.name, std::memory_order_release);
    page.generation.store(head.generation, std::memory_order_seq_cst);
    return page.state.exchange(head.state, std::memory_order_seq_cst) != head.state || ends_waits;
}

std::vector<std::byte> encode_reason(std::uint64_t name, const AbortRecord &record,
                                     std::span<const Fingerprint> calls) {
    ReasonHead head;
    head.name = name;
    head.sequence = record.sequence;
    head.seconds = record.seconds;
    head.cause = record.cause;
    head.rank = record.rank;
    head.missing = record.missing;
    head.text = record.text;
    head.num_calls = static_cast<std::uint64_t>(
        std::ranges::count_if(calls, [](const Fingerprint &call) { return call.sequence != 0; }));
    std::vector<std::byte> reason;
    append(reason, head);
    for (std::size_t member = 0; member < calls.size(); ++member) {
        if (calls[member].sequence != 0) append(reason, ReasonCall{.member = member, .call = calls[member]});
    }
    return reason;
}

std::optional<std::uint64_t> communicator_of(Bytes reason) {
    if (reason.size() < sizeof(ReasonHead)) return std::nullopt;
    const auto head = at<ReasonHead>(reason, 0);
    if (head.num_calls > AbortRecord::max_members) return std::nullopt;
    if (reason.size() != sizeof(ReasonHead) + head.num_calls * sizeof(ReasonCall)) return std::nullopt;
    if (head.cause < 0 || head.cause > static_cast<std::int32_t>(Cause::internal)) return std::nullopt;
    return head.name;
}

void decode_reason(Bytes reason, AbortRecord &record, std::span<Fingerprint> calls) {
    const auto head = at<ReasonHead>(reason, 0);
    const auto size = static_cast<std::int32_t>(calls.size());
    record.cause = head.cause;
    record.rank = head.rank < size ? std::max(head.rank, -1) : -1;
    record.sequence = head.sequence;
    record.seconds = head.seconds;
    record.missing = head.missing;
    record.text = head.text;
    record.text.back() = '\0';
    std::ranges::fill(calls, Fingerprint{});
    for (std::size_t i = 0; i < head.num_calls; ++i) {
        const auto call = at<ReasonCall>(reason.subspan(sizeof head), i);
        if (call.member < calls.size()) calls[call.member] = call.call;
    }
}

} // namespace hocket
