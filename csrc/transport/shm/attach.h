// Cross-memory attach: the kernel copies private memory of another process of the same user to this one's, where it
// permits that. Nothing is ever written into another process: of one that has died another may have the number.
#pragma once

#include "base/types.h"

#include <sys/types.h>

namespace hocket {

/// Lets other processes of the user attach to this one where the system asks for that (Yama).
void permit_attach();

/// Whether other processes may read this one now. A program that becomes another user, or asks the system for it, hides
/// its memory at any time. What was lent before that then ends in a Failure.
bool may_be_attached();

/// Whether the memory of `process` can be read, and holds `token` at `address`: else the number may mean another one.
bool can_attach(pid_t process, std::uint64_t address, std::uint64_t token);

/// Copies all bytes from addresses of `process`. False where it has ended, which others will tell of; a Failure where
/// the kernel refuses.
bool read_attached(pid_t process, const std::byte *source, std::span<std::byte> destination);

} // namespace hocket
