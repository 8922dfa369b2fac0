#include "control/members.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <ranges>
#include <sched.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>

namespace hocket {
namespace {

using namespace std::chrono_literals;

constexpr auto writer_time = 200ms; // for another member to write its reason
constexpr auto reader_time = 500ms; // for another process to notice a failure before one looks whether it is stopped
constexpr auto longest_reader_time = 30s; // or may be, where nobody can tell
constexpr auto decision_time = 2s;        // for rank 0's host to say which reason was first
constexpr auto news_time = 1s;            // for a member's end to be known, once nothing more comes from it

// As runtime/failures.py knows them. Behind the second one comes the rank that has found it.
constexpr const char *cut_off_text = "cut off";
constexpr const char *broken_text = "broken way to ";

/// What a mirror shows until it shows this communicator, and once it shows a later one.
struct Blank {
    explicit Blank(std::uint32_t state) { page.state.store(state, std::memory_order_relaxed); }
    ControlPage page{};
};
const Blank nothing_heard(ControlPage::open), has_left(ControlPage::closed);

std::int64_t now_in_nanoseconds() { return Clock::now().time_since_epoch() / 1ns; }

} // namespace

Members::Members(std::vector<Member> members, int rank, const std::optional<Spanning> &spanning)
    : members_(std::move(members)), rank_(rank), own_(at(rank).page), spanning_(spanning) {
    if (members_.size() > AbortRecord::max_members) throw Failure::internal("a communicator has at most 1024 members");
    for (const Member &one : members_)
        generations_.push_back(one.told_generation.value_or(one.page.generation.load(std::memory_order_acquire)));
    own_.process_namespace.store(namespace_, std::memory_order_relaxed);
    own_.process.store(getpid(), std::memory_order_release);
    if (spanning_) {
        homes_ = {rank_};
        own_.num_members.store(size(), std::memory_order_relaxed);
        own_.name.store(spanning_->name, std::memory_order_release);
    } else {
        homes_.resize(members_.size());
        std::iota(homes_.begin(), homes_.end(), 0);
    }
}

const ControlPage &Members::page_of(int member) const {
    const Member &one = at(member);
    if (!one.told_generation) return one.page;
    const std::uint32_t ahead =
        one.page.generation.load(std::memory_order_seq_cst) - generations_[static_cast<std::size_t>(member)];
    if (ahead == 0) return one.page;
    return static_cast<std::int32_t>(ahead) < 0 ? nothing_heard.page : has_left.page;
}

void Members::ring_leader(std::uint64_t number) const {
    if (spanning_) static_cast<void>(::write(spanning_->bell, &number, sizeof number)); // it is not that far behind
}

std::string Members::place_of(int member) const {
    return std::to_string(rank_of(member)) + (spanning_ ? " on " + at(member).host : "");
}

void Members::address(Failure &failure) const {
    failure.self = rank_of(rank_);
    if (spanning_) {
        if (failure.rank >= 0) failure.hosts[rank_of(failure.rank)] = at(failure.rank).host;
        for (const int member : failure.missing) failure.hosts[rank_of(member)] = at(member).host;
    }
    if (failure.rank >= 0) failure.rank = rank_of(failure.rank);
    for (int &member : failure.missing) member = rank_of(member);
    const auto by_rank = [this](const auto &by_member) {
        std::remove_cvref_t<decltype(by_member)> found;
        for (const auto &[member, value] : by_member) found[rank_of(member)] = value;
        return found;
    };
    failure.calls = by_rank(failure.calls);
    failure.sites = by_rank(failure.sites);
    if (failure.cause != Cause::mismatch || failure.sequence != 0) return;
    for (auto &[rank, call] : failure.calls) { // the sender of the message; another host may have told anything
        if (call.root >= 0 && call.root < size()) call.root = rank_of(call.root);
    }
}

std::function<bool()> Members::have_all_left() const {
    const Presence *const leader = spanning_ ? &spanning_->leader : nullptr;
    return [members = members_, generations = generations_, leader] {
        for (std::size_t i = 0; i < members.size(); ++i) {
            const ControlPage &page = members[i].page;
            const std::uint32_t ahead = page.generation.load(std::memory_order_acquire) - generations[i];
            const bool is_over = static_cast<std::int32_t>(ahead) > 0 ||
                                 (ahead == 0 && page.state.load(std::memory_order_acquire) >= ControlPage::closed);
            const bool is_lost = members[i].told_generation && leader != nullptr && leader->is_dead();
            if (!is_over && !is_lost && !members[i].presence.is_dead()) return false;
        }
        return true;
    };
}

std::vector<int> Members::behind(std::uint64_t sequence) const {
    std::vector<int> members;
    for (int member = 0; member < size(); ++member) {
        if (last_call(member) < sequence) members.push_back(member);
    }
    return members;
}

bool Members::has_given_up(std::uint64_t sequence) const {
    return std::ranges::any_of(std::views::iota(0, size()), [this, sequence](int member) {
        const std::uint64_t call = page_of(member).gave_up.load(std::memory_order_seq_cst);
        return call != 0 && call <= sequence;
    });
}

std::vector<int> Members::closed() const {
    ask_hosts();
    std::vector<int> found;
    for (int member = 0; member < size(); ++member) {
        if (has_closed(member)) { found.push_back(member); }
    }
    return found;
}

std::vector<std::pair<std::uint64_t, double>> Members::progress() const {
    ask_hosts();
    std::vector<std::pair<std::uint64_t, double>> found;
    for (int member = 0; member < size(); ++member) {
        const ProgressRecord::Note note = page_of(member).progress.read();
        const double seconds = static_cast<double>(now_in_nanoseconds() - note.at) * 1e-9;
        found.emplace_back(note.word, note.at == 0 ? std::numeric_limits<double>::infinity() : seconds);
    }
    return found;
}

bool Members::is_stopped(int member) const {
    const ControlPage &page = page_of(member);
    if (at(member).told_generation) return page.is_stopped.load(std::memory_order_relaxed) != 0;
    return page.has_stopped_owner(namespace_);
}

std::vector<int> Members::stopped() const {
    std::vector<int> members;
    for (int member = 0; member < size(); ++member) {
        if (is_stopped(member)) members.push_back(member);
    }
    return members;
}

std::optional<Failure> Members::find_death(std::uint64_t sequence) const {
    std::optional<int> found;
    for (int member = 0; member < size(); ++member) {
        if (!is_dead(member) || has_closed(member)) continue;
        // If a host cannot be reached, because its leader has died, that one is the cause.
        if (!found || (is_cut_off(*found) && !is_cut_off(member))) found = member;
    }
    if (!found) return std::nullopt;
    Failure failure(Cause::died, *found, is_cut_off(*found) ? cut_off_text : "");
    failure.sequence = sequence;
    return failure;
}

std::optional<Failure> Members::find_lost(std::span<const int> awaited,
                                          const std::function<bool(int member)> &is_broken, std::uint64_t sequence,
                                          Clock::time_point &since) const {
    const auto is_lost = [&](int member) { return is_broken(member) && !is_dead(member) && !has_closed(member); };
    const auto found = std::ranges::find_if(awaited, is_lost);
    if (found == awaited.end()) {
        since = {};
        return std::nullopt;
    }
    const auto now = Clock::now();
    if (since == Clock::time_point{}) since = now;
    if (now - since < news_time) {
        ask_hosts();
        return std::nullopt;
    }
    Failure failure(Cause::died, *found, broken_text + name_of(rank_));
    failure.sequence = sequence;
    return failure;
}

/// Whether the writer of a reason has died before its end.
bool Members::has_lost_writer(std::uint32_t state) const {
    if (state == AbortRecord::agent) return spanning_ && spanning_->leader.is_dead();
    const std::uint32_t writer = state - AbortRecord::writing;
    return writer < members_.size() && is_dead(static_cast<int>(writer));
}

/// The member on whose page this rank now writes the reason. Nothing: another reason is there, or is being written.
std::optional<int> Members::take_record() const {
    const auto limit = Clock::now() + writer_time;
    const auto me = AbortRecord::writing + static_cast<std::uint32_t>(rank_);
    for (auto home = homes_.begin(); home != homes_.end();) {
        const int member = *home;
        auto &state = at(member).page.abort.state;
        std::uint32_t found = state.load(std::memory_order_acquire);
        if (found == AbortRecord::ready || found == AbortRecord::proposed) return std::nullopt;
        if (found == AbortRecord::passed) {
            ++home;
        } else if (found == AbortRecord::none || has_lost_writer(found)) {
            const bool passes = found == AbortRecord::none && is_dead(member);
            const bool taken = state.compare_exchange_strong(found, passes ? AbortRecord::passed : me);
            if (taken && !passes) return member;
        } else { // another one is about to finish; if it was stopped, it will do so later
            if (Clock::now() >= limit) return std::nullopt;
            sched_yield();
        }
    }
    return std::nullopt;
}

void Members::record(const Failure &failure) const {
    const auto home = take_record();
    if (!home) return;
    AbortRecord &record = at(*home).page.abort;
    record.cause = static_cast<std::int32_t>(failure.cause);
    record.rank = failure.rank;
    record.sequence = failure.sequence;
    record.seconds = failure.seconds;
    record.missing.fill(0);
    for (int member : failure.missing)
        record.missing[static_cast<std::size_t>(member) / 64] |= std::uint64_t{1} << member % 64;
    std::size_t length = std::min(failure.text.size(), record.text.size() - 1);
    if (length < failure.text.size()) { // a cut must not go through a character
        while (length > 0 && (static_cast<unsigned char>(failure.text[length]) & 0xc0U) == 0x80U) --length;
    }
    record.text.fill('\0');
    std::memcpy(record.text.data(), failure.text.data(), length);
    for (int member = 0; member < size(); ++member) {
        const auto call = failure.calls.find(member);
        at(*home).aborted_calls[static_cast<std::size_t>(member)] =
            call == failure.calls.end() ? Fingerprint{} : call->second;
    }
    record.proposed_at.store(now_in_nanoseconds(), std::memory_order_relaxed);
    record.state.store(spanning_ ? AbortRecord::proposed : AbortRecord::ready, std::memory_order_seq_cst);
    alarm_all();
}

std::optional<Failure> Members::recorded_failure() const {
    const auto state_of = [this](int member) { return at(member).page.abort.state.load(std::memory_order_seq_cst); };
    const auto found =
        std::ranges::find_if_not(homes_, [](auto state) { return state == AbortRecord::passed; }, state_of);
    if (found == homes_.end()) return std::nullopt;
    const Member *const home = &at(*found);
    std::uint32_t state = state_of(*found);
    for (; spanning_ && (state == AbortRecord::proposed || state == AbortRecord::agent); state = state_of(*found)) {
        // This rank has failed, so it goes on with nothing before it knows the reason of all. Nobody decides where
        // rank 0's host cannot be reached: then this rank's own reason holds.
        const auto since = home->page.abort.proposed_at.load(std::memory_order_relaxed);
        const bool may_be_decided = now_in_nanoseconds() - since < decision_time / 1ns && !spanning_->leader.is_dead();
        if (may_be_decided) std::this_thread::sleep_for(100us);
        else if (state == AbortRecord::agent) return std::nullopt; // this rank has proposed nothing, or waited for long
        else home->page.abort.state.compare_exchange_strong(state, AbortRecord::ready);
    }
    if (state != AbortRecord::ready) return std::nullopt;
    const AbortRecord &record = home->page.abort;
    Failure failure(static_cast<Cause>(record.cause), record.rank,
                    {record.text.data(), strnlen(record.text.data(), record.text.size())});
    failure.sequence = record.sequence;
    failure.seconds = record.seconds;
    for (int member = 0; member < size(); ++member) {
        if ((record.missing[static_cast<std::size_t>(member) / 64] >> member % 64 & 1) != 0)
            failure.missing.push_back(member);
        const Fingerprint &call = home->aborted_calls[static_cast<std::size_t>(member)];
        if (call.sequence == 0) continue;
        failure.calls[member] = call;
        std::string site = page_of(member).site_of(call.sequence);
        if (!site.empty()) failure.sites[member] = std::move(site);
    }
    return failure;
}

Failure Members::settle(const Failure &failure) const {
    record(failure);
    return recorded_failure().value_or(failure);
}

void Members::alarm_all() const {
    for (const Member &one : members_) {
        if (!one.told_generation) one.page.raise_alarm();
    }
    tell_hosts();
}

void Members::await_readers(std::atomic<std::uint64_t> ControlPage::*reading, std::uint64_t call, const Hook &withdraw,
                            const std::function<bool(int member)> &may_use) const {
    (own_.*reading).store(0, std::memory_order_seq_cst);
    withdraw();
    alarm_all(); // whoever has recorded the failure may not have come so far
    const auto start = Clock::now();
    const auto is_given_up = [&](int member) {
        const auto waited = Clock::now() - start;
        if (at(member).shares_process || waited < reader_time) return false;
        return waited >= longest_reader_time || is_stopped(member);
    };
    for (int member = 0; member < size(); ++member) {
        while (may_use(member) && !is_dead(member) &&
               (page_of(member).*reading).load(std::memory_order_seq_cst) == call && !is_given_up(member)) {
            sched_yield();
        }
    }
}

void Members::tell_stall(std::chrono::nanoseconds waited, const std::string &what, const std::vector<int> &members,
                         std::uint64_t call, const std::string &known) const {
    // Of two ranks that store at once and then look, at least one sees the other.
    own().waits_in.store(call, std::memory_order_seq_cst);
    // Who knows that it waits in vain is in no circle: another order of calls would not help.
    const bool may_be_in_circle = known.empty() && (call != 0 || members.size() == 1);
    own().waits_for.store(may_be_in_circle ? members.front() + 1 : 0, std::memory_order_seq_cst);
    const std::string found = known.empty() ? circle() : known;
    std::string names;
    for (int member : members) names += (names.empty() ? "" : ", ") + place_of(member);
    std::fprintf(stderr, "hocket: rank %d has waited %lld s in %s for %s %s%s%s\n", rank_of(rank_),
                 static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(waited).count()), what.c_str(),
                 members.size() == 1 ? "rank" : "ranks", names.c_str(), found.empty() ? "" : "; ", found.c_str());
}

std::string Members::circle() const {
    std::vector<int> members;
    bool only_messages = true;
    int member = rank_;
    do {
        const ControlPage &page = page_of(member);
        const int awaited = std::max(page.waits_for.load(std::memory_order_seq_cst), 0) - 1;
        const std::uint64_t call = page.waits_in.load(std::memory_order_seq_cst);
        const bool waits_still = call == 0 || page.in_call.load(std::memory_order_seq_cst) == call;
        if (awaited < 0 || awaited >= size() || !waits_still || members.size() == members_.size()) return "";
        members.push_back(member);
        only_messages = only_messages && call == 0;
        member = awaited;
    } while (member != rank_);
    const char *const advice =
        only_messages ? ": use sendrecv, or batch" : ": make the calls in one order on all ranks";
    if (members.size() == 1) return name_of(rank_) + " waits for itself" + advice;
    for (int &one : members) one = rank_of(one);
    std::ranges::sort(members);
    std::string names;
    for (int one : members)
        names += (names.empty() ? "" : one == members.back() ? " and " : ", ") + std::to_string(one);
    return "ranks " + names + " wait for each other" + advice;
}

Failure Members::closed_here() const {
    Failure failure = closed_failure(rank_, 0, "it closed its communicator");
    address(failure);
    return failure;
}

Failure closed_failure(int member, std::uint64_t sequence, std::string text) {
    Failure failure(Cause::aborted, member, std::move(text));
    failure.sequence = sequence;
    failure.missing = {member};
    return failure;
}

} // namespace hocket
