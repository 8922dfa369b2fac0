// News of control pages, and reasons, as the leader of another host that knows the key may send them.

#include "control/news.h"
#include "script.h"

#include <array>
#include <memory>

namespace hocket::fuzz {
namespace {

constexpr std::size_t num_members = 4;

/// A mirror takes what is well-formed, and shows no call under another number than its own.
void take_news(Bytes news) {
    const auto page = std::make_unique<ControlPage>();
    std::size_t left = news.size();
    while (const auto one = take_page(news)) {
        HOLDS(news.size() < left);
        left = news.size();
        const std::uint32_t before = page->generation.load();
        mirror(*one, *page);
        const bool is_older = static_cast<std::int32_t>(one->head.generation - before) < 0;
        HOLDS(page->generation.load() == (is_older ? before : one->head.generation));
        for (std::uint64_t sequence = 1; sequence < ControlPage::history; ++sequence) {
            const auto call = page->call_of(sequence);
            HOLDS(!call || call->sequence == sequence);
        }
        static_cast<void>(page->site_of(one->head.last_call));
        const ProgressRecord::Note note = page->progress.read();
        HOLDS(is_older || one->head.noted_at == 0 || (note.at > 0 && note.word == one->head.progress));
    }
}

void take_reason(Bytes reason) {
    if (!communicator_of(reason)) return;
    AbortRecord record{};
    std::array<Fingerprint, num_members> calls;
    decode_reason(reason, record, calls);
    HOLDS(record.rank >= -1 && record.rank < static_cast<int>(num_members));
    HOLDS(record.text.back() == '\0' && record.cause >= 0);
}

} // namespace

/// The first byte says what the rest is. Numbers of news are put into shape, or nearly all would have a wrong length.
void fuzz_news(Bytes input) {
    if (input.empty()) return;
    Script script(input);
    const std::uint64_t what = script.number(1);
    if (what % 4 == 0) return take_news(input.subspan(1));
    if (what % 4 == 1) return take_reason(input.subspan(1));
    std::vector<std::byte> news;
    if (what % 4 == 2) {
        ControlPage page{};
        Told told;
        for (int round = 0; round < 3; ++round) {
            page.last_call.store(script.number(2));
            page.state.store(static_cast<std::uint32_t>(script.number(1)));
            if (script.number(1) % 8 == 0) page.renew();
            Fingerprint call{.sequence = script.number(2), .count = script.number(4)};
            page.note_call(call, nullptr, false);
            page.progress.write(call.count);
            append_news(news, {.offset = script.number(1), .rank = 1}, page, std::nullopt, told);
        }
    } else {
        AbortRecord record{};
        record.rank = static_cast<std::int32_t>(script.number(4));
        record.cause = static_cast<std::int32_t>(script.number(1));
        std::array<Fingerprint, num_members> calls;
        for (Fingerprint &call : calls) call.sequence = script.number(1) % 2;
        news = encode_reason(script.number(8), record, calls);
    }
    while (script.has_more() && !news.empty()) { // changes, and a cut
        const std::size_t at = script.number(2) % news.size();
        news[at] = static_cast<std::byte>(script.number(1));
        if (script.number(1) % 16 == 0) news.resize(at);
    }
    if (what % 4 == 2) take_news(news);
    else take_reason(news);
}

} // namespace hocket::fuzz
