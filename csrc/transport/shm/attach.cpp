#include "transport/shm/attach.h"

#include "base/error.h"

#include <cerrno>
#include <fstream>
#include <sys/prctl.h>
#include <sys/uio.h>

namespace hocket {

void permit_attach() {
    std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
    int scope = 0;
    // Only in scope 1 does a process have to name those that may attach to it.
    if (file >> scope && scope == 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

bool may_be_attached() { return prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1; }

bool can_attach(pid_t process, std::uint64_t address, std::uint64_t token) {
    std::uint64_t found = 0;
    const iovec here{&found, sizeof found};
    const iovec there{reinterpret_cast<void *>(address), sizeof found};
    return process_vm_readv(process, &here, 1, &there, 1, 0) == sizeof found && found == token;
}

bool read_attached(pid_t process, const std::byte *source, std::span<std::byte> destination) {
    const iovec here{destination.data(), destination.size()};
    const iovec there{const_cast<std::byte *>(source), destination.size()};
    const ssize_t result = process_vm_readv(process, &here, 1, &there, 1, 0);
    if (result == static_cast<ssize_t>(destination.size())) return true;
    if (result >= 0) errno = EFAULT; // it came to memory that cannot be reached
    if (errno == ESRCH) return false;
    throw Failure::resource("process_vm_readv (HOCKET_CMA=0 avoids this call)");
}

} // namespace hocket
