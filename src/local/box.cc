// Makes boxes as sealed memfds, and opens those of peers.
#include "local/box.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "base/descriptor.h"

namespace hvd::local {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string reason_of(const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

int make_memory() {
#ifdef MFD_NOEXEC_SEAL
  const int quiet = memfd_create("hvd", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (quiet >= 0 || errno != EINVAL) return quiet;  // EINVAL: a kernel that does not know it
#endif
  return memfd_create("hvd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

std::shared_ptr<Box> map(int descriptor, int protection = PROT_READ | PROT_WRITE) {
  const int flags = descriptor >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory = mmap(nullptr, sizeof(Box), protection, flags, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  // A child of the program has no part in it.
  madvise(memory, sizeof(Box), MADV_DONTFORK);
  return {static_cast<Box*>(memory), [](Box* box) { munmap(box, sizeof(Box)); }};
}

}  // namespace

Status OwnBox::create(std::unique_ptr<OwnBox>* ret_box) {
  const auto unavailable = [](const char* what) { return Status(HVD_UNAVAILABLE, reason_of(what)); };
  if (prctl(PR_GET_DUMPABLE) != 1)
    return {HVD_UNAVAILABLE, "this process may not be looked into (PR_SET_DUMPABLE)"};
  std::unique_ptr<OwnBox> box(new OwnBox);
  if (getrandom(box->token_.data(), sizeof(box->token_), 0) != sizeof(box->token_)) {
    return unavailable("getrandom");
  }
  box->descriptor_ = make_memory();
  if (box->descriptor_ < 0) return unavailable("memfd_create");
  if (ftruncate(box->descriptor_, sizeof(Box)) != 0) return unavailable("ftruncate");
  if (fcntl(box->descriptor_, F_ADD_SEALS, kSeals) != 0) return unavailable("F_ADD_SEALS");
  box->memory_ = map(box->descriptor_);
  if (box->memory_ == nullptr) return unavailable("mmap");
  Box& memory = *box->memory_;
  memory.version = kLayoutVersion;
  memory.processor.value = Placement::kUnknown;
  memory.token[0] = box->token_[0];
  memory.token[1] = box->token_[1];
  memory.bytes = sizeof(Box);
  memory.magic = kBoxMagic;
  // As a peer would: it takes a /proc of this process's own namespace, and permission.
  std::shared_ptr<Box> again;
  std::string reason;
  if (open_box(getpid(), box->descriptor_, box->token_, 0, &again, &reason) != Opening::kDone) {
    return {HVD_UNAVAILABLE, reason};
  }
  *ret_box = std::move(box);
  return {};
}

std::shared_ptr<Box> private_box() {
  std::shared_ptr<Box> box = map(-1);
  if (box == nullptr) throw std::bad_alloc();
  return box;
}

OwnBox::~OwnBox() {
  if (descriptor_ >= 0) close(descriptor_);
}

Opening open_box(int32_t process, int32_t descriptor, const Token& token, int32_t writer,
                 std::shared_ptr<Box>* ret_memory, std::string* reason) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  const auto failed = [&] {
    const bool gone = errno == ENOENT || errno == ESRCH;
    *reason = reason_of(path.c_str());
    return gone ? Opening::kGone : Opening::kRefused;
  };
  // Held without being opened, which can have effects if it is something else than a file; and what was
  // looked at is what is opened then, whatever has become of the path.
  const Descriptor place(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (place.get() < 0) return failed();
  struct stat what {};
  if (fstat(place.get(), &what) != 0 || !S_ISREG(what.st_mode) ||
      what.st_size != static_cast<off_t>(sizeof(Box))) {
    *reason = path + " is something else by now";
    return Opening::kGone;
  }
  const Descriptor file(
      open(fmt::format("/proc/self/fd/{}", place.get()).c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) return failed();
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &what) != 0 || what.st_size != static_cast<off_t>(sizeof(Box)) || seals < 0 ||
      (seals & kSeals) != kSeals) {
    *reason = path + " is no sealed memory of the right size";
    return Opening::kGone;
  }
  std::shared_ptr<Box> memory = map(file.get(), PROT_READ);
  const auto writable = [](void* at, size_t size) { return mprotect(at, size, PROT_READ | PROT_WRITE) == 0; };
  if (memory == nullptr || !writable(&memory->bells, sizeof(Bells)) ||
      !writable(&memory->rings[writer], sizeof(Ring))) {
    *reason = reason_of("mmap");
    return Opening::kRefused;
  }
  if (memory->magic != kBoxMagic || memory->version != kLayoutVersion || memory->bytes != sizeof(Box) ||
      memory->token[0] != token[0] || memory->token[1] != token[1]) {
    *reason = path + " is not the box that was announced";
    return Opening::kGone;
  }
  *ret_memory = std::move(memory);
  return Opening::kDone;
}

}  // namespace hvd::local
