// Large memory is mapped by itself, so that it can change its size without a copy and without new pages.
//
// Shared memory is a file in memory (memfd): a page with a token, and from the next huge page's border on
// the data. Others open it by its descriptor in /proc, which the kernel allows to processes of the same user,
// and lock it (flock) for as long as they map it. The kernel takes the lock away from processes that end.
#include "state/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "state/pages.h"

namespace hvd::state {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kPage = 4096;
constexpr std::align_val_t kLine{64};  // of a core's cache

constexpr bool is_large(size_t size) { return size >= 2 * kHugePage; }
constexpr size_t whole_pages(size_t size) { return (size + kHugePage - 1) / kHugePage * kHugePage; }

/// Address space from a huge page's border on. NULL: there is none.
uint8_t* map_private(size_t length) {
  const size_t more = length + kHugePage - kPage;
  void* const all = mmap(nullptr, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<uint8_t*>(all);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  if (before + length < more) munmap(begin + before + length, more - before - length);
  return begin + before;
}

constexpr auto kData = static_cast<off_t>(kHugePage);  // within a file
#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 8;  // Linux 6.3
#endif
// No file may get shorter: a reader of the part that is gone would be ended by a signal (SIGBUS).
constexpr int kSeal = F_SEAL_SHRINK;

Digest random_token() {
  std::random_device random;
  const auto word = [&] { return (uint64_t{random()} << 32U) | random(); };
  return {word(), word()};
}

/// A longer file would end the process by a signal (SIGXFSZ).
bool may_be_so_long(off_t length) {
  rlimit most{};
  return getrlimit(RLIMIT_FSIZE, &most) == 0 &&
         (most.rlim_cur == RLIM_INFINITY || static_cast<rlim_t>(length) <= most.rlim_cur);
}

/// The data of a file. Children of a fork have no use for them, and would keep them.
uint8_t* map_file(int descriptor, size_t length, int protection) {
  void* const data = mmap(nullptr, length, protection, MAP_SHARED, descriptor, kData);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, length, MADV_DONTFORK);
  return static_cast<uint8_t*>(data);
}

/// A file of that length, or of more whose end has no pages.
bool resize_file(int descriptor, off_t end) {
  struct stat known {};
  if (fstat(descriptor, &known) != 0) return false;
  if (end > known.st_size) return may_be_so_long(end) && ftruncate(descriptor, end) == 0;
  return end == known.st_size ||
         fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, end, known.st_size - end) == 0;
}

}  // namespace

Memory Memory::shared(size_t size) {
  if (size == 0 || size > SIZE_MAX / 2) return {};
  Descriptor file(memfd_create("hvd-shards", MFD_CLOEXEC | MFD_NOEXEC_SEAL));
  if (file.get() < 0) file = Descriptor(memfd_create("hvd-shards", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() >= 0 && file.get() <= STDERR_FILENO)
    file = Descriptor(fcntl(file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const size_t length = whole_pages(size);
  const Digest token = random_token();
  const off_t end = kData + static_cast<off_t>(length);
  if (file.get() < 0 || fcntl(file.get(), F_ADD_SEALS, kSeal) != 0 || !resize_file(file.get(), end) ||
      pwrite(file.get(), &token, sizeof(token), 0) != static_cast<ssize_t>(sizeof(token))) {
    return {};
  }
  uint8_t* const data = map_file(file.get(), length, PROT_READ | PROT_WRITE);
  if (data == nullptr) return {};
  Memory result;
  result.data_ = Pointer(data, Delete{length, nullptr, HVD_MEMORY_HOST, Sharing::kOwn, file.release()});
  result.size_ = size;
  if (!get_file_pages({data, length}, result.data_.get_deleter().descriptor, kHugePage)) return {};
  return result;
}

Memory Memory::map(const MemoryPlace& place) {
  if (place.process == 0 || place.process > INT32_MAX || place.descriptor > INT32_MAX || place.size == 0 ||
      place.size > SIZE_MAX / 2) {
    return {};
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", place.process, place.descriptor);
  const size_t length = whole_pages(place.size);
  struct stat known {};
  // On another machine the path may stand for anything: what is no such file is not opened.
  const auto fits = [&] {
    return S_ISREG(known.st_mode) && known.st_ino == place.inode &&
           known.st_size >= kData + static_cast<off_t>(length);
  };
  if (stat(path.c_str(), &known) != 0 || !fits()) return {};
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() >= 0 && file.get() <= STDERR_FILENO)
    file = Descriptor(fcntl(file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  Digest token;
  if (file.get() < 0 || flock(file.get(), LOCK_SH | LOCK_NB) != 0) return {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeal) == 0 || fstat(file.get(), &known) != 0 || !fits() ||
      pread(file.get(), &token, sizeof(token), 0) != static_cast<ssize_t>(sizeof(token)) ||
      token != place.token) {
    return {};
  }
  uint8_t* const data = map_file(file.get(), length, PROT_READ);
  if (data == nullptr) return {};
  Memory result;
  result.data_ = Pointer(data, Delete{length, nullptr, HVD_MEMORY_HOST, Sharing::kForeign, file.release()});
  result.size_ = place.size;
  return result;
}

MemoryPlace Memory::place() const {
  const int descriptor = data_.get_deleter().descriptor;
  struct stat known {};
  MemoryPlace place;
  if (sharing() == Sharing::kNone || fstat(descriptor, &known) != 0 ||
      pread(descriptor, &place.token, sizeof(place.token), 0) != static_cast<ssize_t>(sizeof(place.token))) {
    return {};
  }
  place.process = static_cast<uint64_t>(getpid());
  place.descriptor = static_cast<uint64_t>(descriptor);
  place.inode = known.st_ino;
  place.size = size_;
  return place;
}

bool Memory::in_use() const {
  const int descriptor = data_.get_deleter().descriptor;
  if (sharing() != Sharing::kOwn) return false;
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) return true;
  flock(descriptor, LOCK_UN);
  return false;
}

Memory::Memory(size_t size) : size_(size) {
  if (size == 0) return;
  if (!is_large(size)) {
    data_.reset(static_cast<uint8_t*>(::operator new(size, kLine)));
    return;
  }
  if (size > SIZE_MAX / 2) throw std::bad_alloc();
  const size_t length = whole_pages(size);
  uint8_t* const data = map_private(length);
  if (data == nullptr) throw std::bad_alloc();
  data_ = Pointer(data, Delete{length, nullptr, HVD_MEMORY_HOST});
}

bool Memory::remake_shared(size_t size) {
  Delete& how = data_.get_deleter();
  const size_t length = whole_pages(size);
  const off_t end = kData + static_cast<off_t>(length);
  if (length == how.mapped) {
    size_ = size;
    return true;
  }
  if (!resize_file(how.descriptor, end)) return false;
  void* const moved = mremap(data_.get(), how.mapped, length, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED) return false;
  const size_t there = std::min(how.mapped, length);
  static_cast<void>(data_.release());
  data_.reset(static_cast<uint8_t*>(moved));
  how.mapped = length;
  size_ = size;
  return get_file_pages(std::span(data_.get(), length).subspan(there), how.descriptor, kHugePage + there);
}

bool Memory::remake(size_t size) {
  if (is_shared()) return size > 0 && size <= SIZE_MAX / 2 && remake_shared(size);
  size_t& mapped = data_.get_deleter().mapped;
  if (mapped == 0 || !is_large(size) || size > SIZE_MAX / 2) return false;
  const size_t length = whole_pages(size);
  if (length < mapped) {
    munmap(data_.get() + length, mapped - length);
  } else if (length > mapped) {
    uint8_t* const place = map_private(length);
    if (place == nullptr) return false;
    // The kernel moves only what has one and the same advice, which may change at each huge page's border.
    for (size_t at = 0; at < mapped; at += kHugePage) {
      uint8_t* const from = data_.get() + at;
      if (mremap(from, kHugePage, kHugePage, MREMAP_MAYMOVE | MREMAP_FIXED, place + at) != MAP_FAILED)
        continue;
      munmap(from, mapped - at);
      munmap(place, length);
      leak();  // all of it is gone
      mapped = 0;
      return false;
    }
    static_cast<void>(data_.release());
    data_.reset(place);
  }
  mapped = length;
  size_ = size;
  return true;
}

void Bytes::resize(size_t size) {
  if (size > capacity()) {
    Memory larger(size);
    if (size_ > 0) std::memcpy(larger.data(), data(), size_);
    memory_ = std::move(larger);
  }
  size_ = size;
}

void Bytes::append(const void* data, size_t size) {
  if (size == 0) return;
  const size_t at = size_;
  if (size > SIZE_MAX / 4 || at > SIZE_MAX / 4) throw std::bad_alloc();
  if (at + size > capacity()) {
    resize(std::max(at + size, 2 * capacity()));
    size_ = at;
  }
  std::memcpy(this->data() + at, data, size);
  size_ = at + size;
}

void Memory::Delete::operator()(uint8_t* p) const {
  if (copies != nullptr) {
    copies->free(memory, p);
  } else if (mapped > 0) {
    munmap(p, mapped);
    if (descriptor < 0) return;
    flock(descriptor, LOCK_UN);  // also where a child of a fork has the descriptor
    ::close(descriptor);
  } else {
    ::operator delete(p, kLine);
  }
}

}  // namespace hvd::state
