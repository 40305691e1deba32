// Robust futexes without a libc's mutex around them: their layout is the kernel's alone.
#include "base/life.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <string>

#include "base/descriptor.h"
#include "base/thread.h"

namespace hvd {
namespace {

constexpr uint64_t kMagic = 0x6566696c2d647668;  // "hvd-life"
constexpr size_t kBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kMostAtOnce = 127;  // one of the kernel's 128 is the group's own word
constexpr uint32_t kDied = FUTEX_OWNER_DIED;

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

// As the kernel has it since 5.16; older headers do not.
struct WaitEntry {
  uint64_t value, address;
  uint32_t flags, reserved;
};
constexpr uint32_t kFlag32 = 2, kFlagPrivate = 128;

long wait_for_any(std::vector<WaitEntry>& entries) {
  return syscall(SYS_futex_waitv, entries.data(), entries.size(), 0, nullptr, 0);
}

/// Until the word is no longer `seen`, at most for `longest`.
void wait_for_change(const std::atomic<uint32_t>& word, uint32_t seen, Duration longest) {
  const timespec time{static_cast<time_t>(longest / std::chrono::seconds(1)),
                      static_cast<long>((longest % std::chrono::seconds(1)).count())};
  syscall(SYS_futex, &word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen, &time, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word, bool shared) {
  syscall(SYS_futex, &word, shared ? FUTEX_WAKE : FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr,
          0);
}

bool has_the_size(int descriptor) {
  struct stat what {};
  return fstat(descriptor, &what) == 0 && S_ISREG(what.st_mode) && what.st_size == static_cast<off_t>(kBytes);
}

// Held without being opened first: what stands there may be anything, and opening it can have effects.
std::shared_ptr<const LifePage> open_page(int64_t process, int descriptor, const Digest& token) {
  const Descriptor place(
      open(fmt::format("/proc/{}/fd/{}", process, descriptor).c_str(), O_PATH | O_CLOEXEC));
  if (place.get() < 0 || !has_the_size(place.get())) return nullptr;
  const Descriptor file(
      open(fmt::format("/proc/self/fd/{}", place.get()).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) return nullptr;
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (!has_the_size(file.get()) || seals < 0 || (seals & kSeals) != kSeals) return nullptr;
  void* const memory = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, kBytes, MADV_DONTFORK);
  std::shared_ptr<const LifePage> page(static_cast<const LifePage*>(memory),
                                       [](const LifePage* p) { munmap(const_cast<LifePage*>(p), kBytes); });
  if (page->magic != kMagic || page->token[0] != token.low || page->token[1] != token.high) return nullptr;
  return page;
}

}  // namespace

Status Life::hold(std::unique_ptr<Life>* ret_life) {
  const auto unavailable = [](const char* what) {
    return Status(HVD_UNAVAILABLE, fmt::format("{}: {}", what, std::strerror(errno)));
  };
  std::unique_ptr<Life> life(new Life);
  uint64_t random[2];
  if (getrandom(random, sizeof(random), 0) != sizeof(random)) return unavailable("getrandom");
  life->token_ = {random[0], random[1]};
  life->descriptor_ = memfd_create("hvd-life", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (life->descriptor_ < 0) return unavailable("memfd_create");
  if (ftruncate(life->descriptor_, kBytes) != 0) return unavailable("ftruncate");
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, life->descriptor_, 0);
  if (memory == MAP_FAILED) return unavailable("mmap");
  madvise(memory, kBytes, MADV_DONTFORK);
  life->page_ = static_cast<LifePage*>(memory);
  life->page_->token[0] = random[0];
  life->page_->token[1] = random[1];
  life->page_->magic = kMagic;
  // From here on nobody can change its size, nor write to it but through the mapping that there is.
  int seals = kSeals;
#ifdef F_SEAL_FUTURE_WRITE
  seals |= F_SEAL_FUTURE_WRITE;
#endif
  if (fcntl(life->descriptor_, F_ADD_SEALS, seals) != 0 && fcntl(life->descriptor_, F_ADD_SEALS, kSeals) != 0)
    return unavailable("F_ADD_SEALS");
  {
    const SignalsBlocked blocked;
    life->thread_ = std::thread([held = life.get()] { held->run(); });
  }
  {
    std::unique_lock lock(life->mutex_);
    life->changed_.wait(lock, [&] { return life->held_; });
    if (!life->works_) return {HVD_UNAVAILABLE, "set_robust_list"};
  }
  *ret_life = std::move(life);
  return {};
}

// The thread uses no robust mutex of the C library, whose list this one takes the place of.
void Life::run() {
  robust_list entry{};
  robust_list_head head{};
  head.list.next = &entry;
  entry.next = &head.list;
  head.futex_offset =
      static_cast<long>(reinterpret_cast<intptr_t>(&page_->word) - reinterpret_cast<intptr_t>(&entry));
  page_->word = static_cast<uint32_t>(syscall(SYS_gettid)) | FUTEX_WAITERS;  // so that the kernel wakes
  std::unique_lock lock(mutex_);
  works_ = syscall(SYS_set_robust_list, &head, sizeof(head)) == 0;
  held_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return ending_; });
  page_->word = 0;
  wake_all(page_->word, true);
  syscall(SYS_set_robust_list, nullptr, sizeof(head));
}

Life::~Life() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (page_ != nullptr) munmap(page_, kBytes);
  if (descriptor_ >= 0) close(descriptor_);
}

LifeWatch::~LifeWatch() {
  for (const auto& group : groups_) {
    {
      const std::lock_guard lock(group->mutex);
      group->ending = true;
    }
    change(*group);
    if (group->thread.joinable()) group->thread.join();
  }
}

void LifeWatch::change(Group& group) {
  ++group.changed;
  wake_all(group.changed, false);
}

bool LifeWatch::watch(uint64_t key, int64_t process, int descriptor, const Digest& token,
                      std::function<void()> died) {
  std::vector<WaitEntry> none;
  if (wait_for_any(none) != 0 && errno == ENOSYS) return false;
  if (process <= 0 || descriptor < 0) return false;
  std::shared_ptr<const LifePage> page = open_page(process, descriptor, token);
  if (page == nullptr) return false;
  const std::lock_guard lock(mutex_);
  if (group_of_.contains(key)) return false;
  try {
    Group& group = group_with_room();
    const auto entry = group_of_.emplace(key, &group).first;
    try {
      const std::lock_guard own(group.mutex);
      group.watched.emplace(key, Watched{std::move(page), std::move(died)});
    } catch (...) {
      group_of_.erase(entry);
      throw;
    }
    change(group);
    return true;
  } catch (const std::exception&) { return false; }  // no thread or no memory: the sockets tell
}

// Under mutex_. A group is kept once its thread runs.
LifeWatch::Group& LifeWatch::group_with_room() {
  for (const auto& group : groups_) {
    const std::lock_guard own(group->mutex);
    if (group->watched.size() < kMostAtOnce) return *group;
  }
  groups_.reserve(groups_.size() + 1);
  auto fresh = std::make_unique<Group>();
  {
    const SignalsBlocked blocked;
    fresh->thread = std::thread([group = fresh.get()] { run(*group); });
  }
  groups_.push_back(std::move(fresh));
  return *groups_.back();
}

void LifeWatch::forget(uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = group_of_.find(key);
  if (found == group_of_.end()) return;
  Group& group = *found->second;
  group_of_.erase(found);
  {
    const std::lock_guard own(group.mutex);
    group.watched.erase(key);
  }
  change(group);
}

void LifeWatch::run(Group& group) {
  std::vector<WaitEntry> entries;
  std::vector<std::shared_ptr<const LifePage>> pages;  // kept while the kernel waits on them
  LookPace pace;
  try {
    entries.reserve(kMostAtOnce + 1);
    pages.reserve(kMostAtOnce);
  } catch (const std::exception&) { return; }  // no memory: the sockets tell
  for (;;) {
    const uint32_t seen = group.changed.load();
    entries.assign(1, {seen, reinterpret_cast<uint64_t>(&group.changed), kFlag32 | kFlagPrivate, 0});
    pages.clear();
    {
      const std::lock_guard lock(group.mutex);
      if (group.ending) return;
      for (auto& [key, watched] : group.watched) {
        const uint32_t word = watched.page->word.load();
        if ((word & kDied) != 0 && watched.died) {
          wake_all(watched.page->word, true);  // the kernel wakes one: others may wait on it as well
          try {
            std::exchange(watched.died, nullptr)();
          } catch (const std::exception&) {}  // no memory to pass it on: the sockets tell
        }
        if (!watched.died || word == 0) continue;
        entries.push_back({word, reinterpret_cast<uint64_t>(&watched.page->word), kFlag32, 0});
        pages.push_back(watched.page);
      }
    }
    const Time began = now();
    if (wait_for_any(entries) < 0 && errno != EAGAIN && errno != EINTR) return;  // the sockets tell
    if (const Duration rest = pace.rest_after(now() - began); rest > Duration(0))
      wait_for_change(group.changed, seen, rest);
  }
}

}  // namespace hvd
