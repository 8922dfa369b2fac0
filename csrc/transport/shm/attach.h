// Cross-memory attach: the kernel copies between this process's private memory and that of another one of the same
// user, where it permits that.
#pragma once

#include "base/types.h"

#include <sys/types.h>

namespace hocket {

/// Lets other processes of the user attach to this one where the system asks for that (Yama).
void permit_attach();

/// Whether the memory of `process` can be read, and holds `token` at `address`: else the number may mean another one.
bool can_attach(pid_t process, std::uint64_t address, std::uint64_t token);

/// Copy all bytes from or to addresses of `process`. False where it has ended, which others will tell of; a Failure
/// where the kernel refuses.
bool read_attached(pid_t process, const std::byte *source, std::span<std::byte> destination);
bool write_attached(pid_t process, std::byte *destination, Bytes source);

} // namespace hocket
