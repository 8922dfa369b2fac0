// The matcher of messages, with all ranks in one thread: which receive gets what, over shared memory and byte by byte.

#include "check.h"
#include "matchers.h"

#include <cstring>
#include <numeric>
#include <random>
#include <set>

using namespace hocket;
using namespace hocket::test;

namespace {

/// A rank whose peer 1 sends any header.
struct Liar {
    Machines machines{2, Over::bytes};

    std::string answer_to(std::vector<std::uint64_t> words) { // three words for each header
        const Bytes bytes(reinterpret_cast<const std::byte *>(words.data()), words.size() * 8);
        const int peer = 0;
        try {
            for (std::byte byte : bytes) {
                CHECK(machines.transports[1]->post({&peer, 1}, {&byte, 1}, 1).num_bytes == 1);
                machines[0].advance();
            }
        } catch (const Failure &failure) {
            CHECK(failure.cause == Cause::internal);
            return failure.text;
        }
        return "";
    }
};

/// kind, scope, dtype, number: the first word of a header.
constexpr std::uint64_t word(std::uint64_t kind, std::uint64_t scope, std::uint64_t number) {
    return kind | scope << 8 | static_cast<std::uint64_t>(Dtype::uint8) << 16 | number << 32;
}
constexpr std::uint64_t eager = 0, announce = 1, clear = 2, data = 3;

} // namespace

TEST(match_carries_any_size_whoever_comes_first) {
    for (Over over : all_transports) {
        Machines machines(2, over);
        std::size_t number = 0;
        for (std::size_t size : {0U, 1U, 24U, 25U, 48U, 49U, 2048U, 2049U, 8192U, 8193U, 65536U, 65537U, 131072U,
                                 131073U, 262144U, 262145U, 1048579U}) {
            if (over == Over::bytes && size > eager_bytes) size = eager_bytes + 1;
            for (bool receiver_first : {false, true}) {
                auto bytes = content(++number, size);
                std::vector<std::byte> found(size);
                std::shared_ptr<Exchange> sent, received;
                if (receiver_first) received = machines.receive(1, 0, 5, found);
                machines.settle();
                sent = machines.send(0, 1, 5, bytes);
                machines.settle();
                CHECK(sent->done == (receiver_first || size <= eager_bytes), size);
                if (!receiver_first) received = machines.receive(1, 0, 5, found);
                machines.settle();
                CHECK(sent->done && received->done && found == bytes, "size", size);
                CHECK(received->source == 0 && received->found_tag == 5);
                CHECK(machines[0].waiting_for().empty() && machines[1].waiting_for().empty());
            }
        }
    }
}

// A separate message for the header would cost another cache line.
TEST(match_sends_a_header_with_its_payload_where_the_transport_takes_both) {
    for (Over over : {Over::threads, Over::processes}) {
        Machines machines(2, over);
        auto bytes = content(1, 10'000);
        std::vector<std::byte> found(bytes.size());
        const auto received = machines.receive(1, 0, 5, found);
        machines.send(0, 1, 5, bytes);
        machines[0].advance();
        CHECK(machines.transports[0]->posted(1) == 1);
        machines.settle();
        CHECK(received->done && found == bytes);
    }
    CHECK(Machines(1, Over::bytes).transports[0]->reach({}).head_bytes == 0, "it goes ahead, as in all tests here");
}

TEST(match_by_tag_out_of_order_and_in_order_within_a_tag) {
    for (Over over : all_transports) {
        Machines machines(2, over);
        constexpr std::size_t count = 12;
        std::vector<std::vector<std::byte>> sent, found(count, std::vector<std::byte>(40));
        std::vector<std::shared_ptr<Exchange>> receives;
        for (std::size_t i = 0; i < count; ++i) sent.push_back(content(i, 40));
        for (std::size_t i = 0; i < count; ++i) machines.send(0, 1, i % 3, sent[i]);
        for (std::uint64_t tag : {2U, 0U, 1U}) {
            for (std::size_t i = tag; i < count; i += 3) receives.push_back(machines.receive(1, 0, tag, found[i]));
        }
        machines.settle();
        for (const auto &receive : receives) CHECK(receive->done);
        CHECK(found == sent);
    }
}

TEST(match_takes_wildcards_in_the_order_of_arrival) {
    for (Over over : all_transports) {
        Machines machines(3, over);
        auto first = content(1, 8), second = content(2, eager_bytes + 1), third = content(3, 8);
        std::vector<std::byte> a(8), b(second.size()), c(8);
        const auto any = machines.receive(0, any_source, std::nullopt, a);
        machines.send(2, 0, 7, first);
        machines.settle();
        CHECK(any->done && any->source == 2 && any->found_tag == 7 && a == first);
        machines.send(1, 0, 9, second); // announced, but before the third
        machines.send(1, 0, 4, third);
        machines.settle();
        const auto from_one = machines.receive(0, 1, std::nullopt, b);
        const auto last = machines.receive(0, any_source, 4, c);
        machines.settle();
        CHECK(from_one->done && from_one->found_tag == 9 && b == second);
        CHECK(last->done && last->source == 1 && c == third);
    }
}

TEST(match_keeps_scopes_apart) {
    Machines machines(2, Over::bytes);
    auto own = content(1, 16), users = content(2, 16);
    std::vector<std::byte> a(16), b(16);
    Message message{.sends = true,
                    .peer = 1,
                    .tag = ~std::uint64_t{0},
                    .scope = Scope::internal,
                    .data = own.data(),
                    .num_bytes = 16};
    machines.post(0, message);
    const auto any = machines.receive(1, any_source, std::nullopt, a);
    machines.settle();
    CHECK(!any->done && machines[1].unmatched().empty(), "an internal message is not for the program");
    machines.send(0, 1, 3, users);
    message.sends = false;
    message.peer = 0;
    message.data = b.data();
    const auto internal = machines.post(1, message);
    machines.settle();
    CHECK(any->done && any->found_tag == 3 && a == users && internal->done && b == own);
}

TEST(match_sends_to_oneself) {
    for (Over over : all_transports) {
        Machines machines(1, over);
        auto small = content(1, 40), large = content(2, eager_bytes + 1);
        std::vector<std::byte> a(40), b(large.size());
        const auto sent = machines.send(0, 0, 1, large);
        machines.send(0, 0, 2, small);
        const auto second = machines.receive(0, any_source, 2, a), first = machines.receive(0, 0, 1, b);
        machines.settle();
        CHECK(sent->done && first->done && second->done && a == small && b == large);
    }
}

/// The sender writes a part of the longest messages to the receiver's memory, also of several messages at once.
TEST(match_moves_the_longest_from_both_ends) {
    for (Over over : {Over::threads, Over::processes}) {
        Machines machines(3, over);
        constexpr std::size_t size = (std::size_t{2} << 20) + 100'003;
        std::vector<std::vector<std::byte>> sent, found(4, std::vector<std::byte>(size));
        for (std::size_t i = 0; i < found.size(); ++i) sent.push_back(content(i, size));
        std::vector<std::shared_ptr<Exchange>> receives;
        for (std::size_t i = 0; i < found.size(); ++i) {
            receives.push_back(machines.receive(2, static_cast<int>(i % 2), i, found[i]));
            machines.send(static_cast<int>(i % 2), 2, i, sent[i]);
        }
        machines.settle();
        for (const auto &receive : receives) CHECK(receive->done);
        CHECK(found == sent);
    }
}

TEST(match_lets_short_messages_pass_between_the_pieces_of_long_ones) {
    for (Over over : {Over::threads, Over::processes}) {
        Machines machines(2, over);
        constexpr std::size_t size = std::size_t{4} << 20;
        auto long_one = content(1, size), other = content(2, size), short_one = content(3, 100);
        std::vector<std::byte> a(size), b(size), c(100);
        const auto first = machines.receive(1, 0, 1, a), second = machines.receive(1, 0, 2, b);
        const auto third = machines.receive(1, 0, 3, c);
        machines.send(0, 1, 1, long_one);
        machines.send(0, 1, 2, other);
        for (int i = 0; i < 3; ++i) {
            for (auto &matcher : machines.matchers) matcher->advance();
        }
        machines.send(0, 1, 3, short_one);
        while (!third->done) {
            CHECK(!first->done && !second->done, "it waited for the end of a long one");
            for (auto &matcher : machines.matchers) matcher->advance();
        }
        CHECK(a.back() != long_one.back() || b.back() != other.back());
        machines.settle();
        CHECK(first->done && second->done && a == long_one && b == other && c == short_one);
    }
}

TEST(match_names_both_sides_of_a_difference) {
    for (bool in_type : {false, true}) {
        for (std::size_t size : {std::size_t{40}, std::size_t{40'000}}) {
            for (bool receiver_first : {false, true}) {
                Machines machines(2, Over::threads);
                auto bytes = content(1, size);
                std::vector<std::byte> found(in_type ? size : size - 8);
                std::optional<Failure> failure = failure_of([&] {
                    if (!receiver_first) machines.send(0, 1, 6, bytes, in_type ? Dtype::int64 : Dtype::float64);
                    machines.settle();
                    machines.receive(1, 0, 6, found, Dtype::float64);
                    if (receiver_first) machines.send(0, 1, 6, bytes, in_type ? Dtype::int64 : Dtype::float64);
                    machines.settle();
                });
                CHECK(failure && failure->cause == Cause::mismatch && failure->calls.contains(1));
                const Fingerprint &call = failure->calls.at(1);
                CHECK(call.root == 0 && call.count == found.size() / 8 && call.schedule == bytes.size() / 8);
                CHECK((call.dtype != call.op) == in_type);
                CHECK(failure->text == "the message with tag 6", failure->text);
            }
        }
    }
}

TEST(match_names_whom_it_waits_for) {
    Machines machines(4, Over::bytes);
    std::vector<std::byte> bytes(eager_bytes + 1);
    machines.send(0, 2, 1, bytes);
    CHECK(machines[0].waiting_for() == std::vector<int>{2});
    machines.settle();
    CHECK(machines[0].waiting_for() == std::vector<int>{2});
    machines.receive(0, 3, 1, bytes);
    CHECK((machines[0].waiting_for() == std::vector<int>{2, 3}));
    machines.receive(1, any_source, 1, bytes);
    CHECK((machines[1].waiting_for() == std::vector<int>{0, 2, 3}));
    const auto moves = machines[1].num_moves();
    CHECK(!machines[1].advance() && machines[1].num_moves() == moves);
}

TEST(match_does_not_trust_a_peer) {
    const std::pair<const char *, std::vector<std::uint64_t>> lies[] = {
        {"an unknown kind", {word(9, 0, 0), 0, 0}},
        {"too long to come without a request", {word(eager, 0, 0), 0, most_awaited_bytes + 1}},
        {"a request for a message that was not announced", {word(clear, 0, 0), 0, 0}},
        {"bytes that were not requested", {word(data, 0, 0), 0, 10}},
        {"a tag outside of the allowed range", {word(eager, 0, 0), std::uint64_t{1} << 31, 0}},
        {"a tag outside of the allowed range", {word(eager, 7, 0), 1, 0}},
        {"elements of an unknown type", {word(eager, 0, 0) | num_dtypes << 16, 1, 8}},
        {"not numbered in order", {word(announce, 0, 1), 1, 9000}},
        {"not numbered in order", {word(announce, 0, 0), 1, 9000, word(announce, 0, 0), 1, 9000}},
    };
    for (const auto &[answer, words] : lies) {
        const std::string found = Liar().answer_to(words);
        CHECK(found.find(answer) != std::string::npos && found.starts_with("member 1"), answer, "expected, found",
              found);
    }
    Liar flooding;
    std::vector<std::uint64_t> flood;
    for (unsigned i = 0; i < Matcher::max_unmatched; ++i) flood.insert(flood.end(), {word(eager, 0, 0), 1, 0});
    CHECK(flooding.answer_to(flood).empty());
    CHECK(flooding.answer_to({word(eager, 0, 0), 1, 0}).find("more than its credit allows") != std::string::npos);
    // The limit is lower for longer messages, so that some is left for others.
    Liar filling;
    CHECK(filling.answer_to({word(eager, 0, 0), 1, eager_bytes}).empty());
    CHECK(filling.answer_to(std::vector<std::uint64_t>(eager_bytes / 8)).empty());
    CHECK(filling.answer_to({word(eager, 0, 0), 1, 8, 0}).empty());
    const auto size_beyond = short_bytes + 1;
    CHECK(filling.answer_to({word(eager, 0, 0), 1, size_beyond}).find("more than its credit allows") !=
          std::string::npos);
    Liar generous;
    constexpr std::size_t size = eager_bytes + 1;
    std::vector<std::byte> bytes(size);
    generous.machines.receive(0, 1, 1, bytes);
    CHECK(generous.answer_to({word(announce, 0, 0), 1, size}).empty());
    const std::string found = generous.answer_to({word(data, 0, 0), 0, size + 1});
    CHECK(found.find("more bytes than were requested") != std::string::npos, found);
    Liar greedy;
    std::vector<std::byte> one(1);
    for (unsigned i = 0; i < Matcher::max_unmatched; ++i) greedy.machines.send(0, 1, 1, one);
    greedy.machines.settle();
    greedy.machines.transports[1]->tell(0, Matcher::max_unmatched + 1);
    const auto asked = failure_of([&] {
        greedy.machines.send(0, 1, 1, one);
        greedy.machines.settle();
    });
    CHECK(asked && asked->text.find("a request for more than was sent") != std::string::npos);
}

// Random traffic ------------------------------------------------------------------------------------------------------

namespace {

struct Planned {
    Message message;
    int rank;
    std::size_t size;
    std::vector<std::byte> bytes;
    std::shared_ptr<Exchange> exchange; // once it is posted
    std::optional<std::size_t> partner; // the model's answer, or the result
};

bool fit(const Planned &send, const Planned &receive) {
    return send.message.peer == receive.rank &&
           (receive.message.peer == any_source || receive.message.peer == send.rank) &&
           (!receive.message.tag || receive.message.tag == send.message.tag);
}

/// Sends and receives that need not match, in the order in which each rank posts them. The receives of a rank have one
/// size if they take any tag, else one size for each tag.
std::vector<Planned> plan_traffic(std::mt19937 &random, int num_ranks, std::size_t count, bool any_sources,
                                  std::span<const std::size_t> sizes) {
    const auto pick = [&](std::size_t below) { return static_cast<std::size_t>(random()) % below; };
    const auto pick_rank = [&] { return static_cast<int>(pick(static_cast<std::size_t>(num_ranks))); };
    std::vector<std::vector<std::size_t>> size_of_tag(static_cast<std::size_t>(num_ranks));
    std::vector<bool> any_tags;
    for (auto &of_rank : size_of_tag) {
        any_tags.push_back(pick(2) == 0);
        const std::size_t same = sizes[pick(sizes.size())];
        for (int tag = 0; tag < 3; ++tag) of_rank.push_back(any_tags.back() ? same : sizes[pick(sizes.size())]);
    }
    std::vector<Planned> traffic;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t tag = pick(3);
        const int sender = pick_rank(), receiver = pick_rank();
        const std::size_t size = size_of_tag[static_cast<std::size_t>(receiver)][tag];
        Planned next{.message = {.sends = pick(2) == 0, .tag = tag},
                     .rank = sender,
                     .size = size,
                     .bytes = {},
                     .exchange = {},
                     .partner = {}};
        next.message.peer = receiver;
        if (next.message.sends) {
            next.bytes = content(i, size);
        } else {
            next.rank = receiver;
            next.message.peer = any_sources && pick(3) == 0 ? any_source : sender;
            if (any_tags[static_cast<std::size_t>(receiver)] && pick(2) == 0) next.message.tag.reset();
            next.bytes.resize(size);
        }
        traffic.push_back(std::move(next));
    }
    for (Planned &one : traffic) {
        one.message.data = one.bytes.data();
        one.message.num_bytes = one.size;
    }
    return traffic;
}

/// Posts the traffic and moves ranks in random order, until nothing moves.
void run_traffic(std::mt19937 &random, Machines &machines, std::vector<Planned> &traffic) {
    const auto num_ranks = machines.matchers.size();
    std::vector<std::size_t> next(num_ranks, 0);
    for (std::size_t left = traffic.size(); left > 0;) {
        const auto rank = static_cast<int>(random() % num_ranks);
        std::size_t &at = next[static_cast<std::size_t>(rank)];
        while (at < traffic.size() && traffic[at].rank != rank) ++at;
        if (at < traffic.size() && random() % 3 == 0) {
            traffic[at].exchange = machines.post(rank, traffic[at].message, random() % 2 == 0);
            ++at;
            --left;
        } else {
            machines[rank].advance();
        }
    }
    machines.settle();
}

/// Without any_source there is one right answer for any timing: each receive in turn takes the first matching message
/// that is left.
void match_by_model(std::vector<Planned> &traffic) {
    for (std::size_t i = 0; i < traffic.size(); ++i) {
        if (traffic[i].message.sends) continue;
        for (std::size_t j = 0; j < traffic.size(); ++j) {
            if (!traffic[j].message.sends || traffic[j].partner || !fit(traffic[j], traffic[i])) continue;
            traffic[i].partner = j;
            traffic[j].partner = i;
            break;
        }
    }
}

void check_against_model(std::vector<Planned> &traffic, unsigned seed) {
    match_by_model(traffic);
    for (const Planned &one : traffic) {
        if (one.message.sends) {
            CHECK(one.exchange->done || !one.partner, "seed", seed, "a send that was received is not done");
            continue;
        }
        CHECK(one.exchange->done == one.partner.has_value(), "seed", seed, "rank", one.rank);
        if (!one.partner) continue;
        const Planned &send = traffic[*one.partner];
        CHECK(one.exchange->source == send.rank && one.exchange->found_tag == *send.message.tag, "seed", seed);
        CHECK(one.bytes == send.bytes, "seed", seed);
    }
}

/// With any_source: every message goes to at most one receive, unchanged; no matching pair is left; no overtaking.
void check_rules(std::vector<Planned> &traffic, unsigned seed) {
    for (std::size_t i = 0; i < traffic.size(); ++i) {
        Planned &receive = traffic[i];
        if (receive.message.sends || !receive.exchange->done) continue;
        std::uint32_t number = 0;
        std::memcpy(&number, receive.bytes.data(), sizeof number);
        CHECK(number < traffic.size() && traffic[number].message.sends && !traffic[number].partner, "seed", seed);
        Planned &send = traffic[number];
        CHECK(fit(send, receive) && receive.bytes == send.bytes && receive.exchange->source == send.rank, "seed", seed);
        CHECK(receive.exchange->found_tag == *send.message.tag && send.exchange->done, "seed", seed);
        receive.partner = number;
        send.partner = i;
    }
    for (std::size_t i = 0; i < traffic.size(); ++i) {
        for (std::size_t j = 0; j < traffic.size(); ++j) {
            const Planned &send = traffic[j], &receive = traffic[i];
            if (receive.message.sends || !send.message.sends || !fit(send, receive)) continue;
            CHECK(receive.partner || send.partner, "seed", seed, "both are left");
            // This receive took a later message of the same sender, so an earlier receive took the earlier message.
            if (!receive.partner || traffic[*receive.partner].rank != send.rank || j >= *receive.partner) continue;
            CHECK(send.partner && *send.partner < i, "seed", seed, "message", j, "was overtaken");
        }
    }
}

} // namespace

TEST(match_random_traffic_gives_everybody_what_the_model_says) {
    constexpr std::size_t small[] = {0, 1, 7, 24, 25, 100},
                          mixed[] = {0, 3, 24, 300, 2049, 8193, 65'536, 140'000, 300'000};
    for (Over over : all_transports) {
        const unsigned num_seeds = thread_sanitizer ? 8 : 25;
        for (unsigned seed = 0; seed < num_seeds; ++seed) {
            std::mt19937 random(seed);
            const int num_ranks = 1 + static_cast<int>(seed % 5);
            Machines machines(num_ranks, over);
            auto traffic = plan_traffic(random, num_ranks, 300, false,
                                        over == Over::bytes ? std::span<const std::size_t>(small)
                                                            : std::span<const std::size_t>(mixed));
            run_traffic(random, machines, traffic);
            check_against_model(traffic, seed);
        }
    }
}

TEST(match_random_traffic_from_any_source_keeps_the_rules) {
    constexpr std::size_t small[] = {4, 24, 25, 100}, mixed[] = {4, 24, 300, 2049, 8193, 65'536, 140'000, 300'000};
    for (Over over : all_transports) {
        const unsigned num_seeds = thread_sanitizer ? 8 : 25;
        for (unsigned seed = 0; seed < num_seeds; ++seed) {
            std::mt19937 random(1000 + seed);
            const int num_ranks = 2 + static_cast<int>(seed % 4);
            Machines machines(num_ranks, over);
            auto traffic = plan_traffic(random, num_ranks, 300, true,
                                        over == Over::bytes ? std::span<const std::size_t>(small)
                                                            : std::span<const std::size_t>(mixed));
            run_traffic(random, machines, traffic);
            check_rules(traffic, seed);
        }
    }
}
