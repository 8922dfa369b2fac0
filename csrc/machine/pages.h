// Which pages memory of this process lies in.
#pragma once

#include "base/types.h"

#include <array>
#include <cstdint>
#include <mutex>

namespace hocket {

/// Huge ones are those that the processor looks up in one step less (2 MiB); unknown where the system does not tell, or
/// where nobody has touched the memory yet, so that it has none.
enum class Pages : std::uint8_t { unknown, small, huge };

/// What Linux tells of them since 6.7. Asking takes a microsecond, so answers are remembered for a while.
class PageMap {
  public:
    PageMap();
    ~PageMap();
    PageMap(const PageMap &) = delete;
    PageMap &operator=(const PageMap &) = delete;

    /// Of `memory`, which is not empty: huge ones if but a quarter of it at most, as at the ends of a large array, lies
    /// in small ones. May be called by several threads.
    Pages of(Bytes memory);

  private:
    /// While a program goes on using memory, its pages may become huge ones, or others be put in their place.
    static constexpr int most_uses = 64;
    static constexpr std::size_t most_part_in_small = 4; // one in so many, of memory that counts as in huge pages
    struct Answer {
        Bytes memory;
        Pages pages = Pages::unknown; // which is not remembered
        int num_uses = most_uses;
    };

    Pages ask(Bytes memory);
    void end();

    int descriptor_; // of this process's map; -1: there is none, or it does not tell
    std::mutex mutex_;
    std::array<Answer, 32> answers_;
    std::size_t next_ = 0;
};

} // namespace hocket
