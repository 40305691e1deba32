// The number of this process, kept in a page that the kernel empties in a forked child.
#include "base/process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace hvd {
namespace {

/// A page that a forked child finds empty; NULL where the kernel has no such pages (before Linux 4.14).
std::atomic<pid_t>* forgetful_page() {
  const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, size, MADV_WIPEONFORK) != 0) {
    munmap(page, size);
    return nullptr;
  }
  return static_cast<std::atomic<pid_t>*>(page);
}

}  // namespace

pid_t current_process() {
  static std::atomic<pid_t>* const kept = forgetful_page();  // as long as the process
  if (kept == nullptr) return getpid();
  pid_t process = kept->load(std::memory_order_relaxed);
  if (process == 0) {
    process = getpid();
    kept->store(process, std::memory_order_relaxed);
  }
  return process;
}

}  // namespace hvd
