// Reads and writes the file of a spool.
#include "agent/spool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/descriptor.h"

namespace hvd::agent {
namespace {

class FileSpool final : public Spool {
 public:
  FileSpool(std::string directory, uint64_t limit) : directory_(std::move(directory)), limit_(limit) {}

  bool push(std::string_view bytes) override {
    if (file_.get() < 0 && !open()) return false;
    if (end_ + bytes.size() > limit_) {
      why_ = fmt::format("{} holds {} bytes (agent_spool_bytes is {})", directory_, end_, limit_);
      return false;
    }
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n =
          ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(end_ + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        failed("written", n < 0 ? errno : ENOSPC);
        // A part was written: its room is given back.
        if (::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0) return false;
        return false;
      }
      done += static_cast<size_t>(n);
    }
    end_ += bytes.size();
    return true;
  }

  bool pop(size_t size, std::string* ret_bytes) override {
    const uint64_t from = begin_;
    begin_ += size;
    ret_bytes->resize(size);
    bool whole = true;
    for (size_t done = 0; done < size && whole;) {
      const ssize_t n =
          ::pread(file_.get(), ret_bytes->data() + done, size - done, static_cast<off_t>(from + done));
      if (n < 0 && errno == EINTR) continue;
      whole = n > 0;
      if (whole) done += static_cast<size_t>(n);
      if (!whole) failed("read", n < 0 ? errno : EIO);
    }
    if (begin_ >= end_) clear();
    return whole;
  }

  void clear() override {
    begin_ = end_ = 0;
    if (file_.get() >= 0 && ::ftruncate(file_.get(), 0) != 0) file_ = Descriptor();
  }

  std::string why() const override { return why_; }
  std::string place() const override { return directory_; }

 private:
  void failed(const char* what, int number) {
    why_ = fmt::format("the spool in {} can't be {}: {}", directory_, what, std::strerror(number));
  }

  bool open() {
    if (directory_.empty()) {
      const char* given = ::secure_getenv("TMPDIR");
      directory_ = given != nullptr && *given != 0 ? given : "/var/tmp";
    }
    file_ = Descriptor(::open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600));
    if (file_.get() < 0) {  // not every file system can
      std::string path = directory_ + "/hvd-spool.XXXXXX";
      file_ = Descriptor(::mkostemp(path.data(), O_CLOEXEC));
      if (file_.get() >= 0) ::unlink(path.c_str());
    }
    if (file_.get() < 0) failed("made", errno);
    return file_.get() >= 0;
  }

  std::string directory_;
  const uint64_t limit_;
  Descriptor file_;
  uint64_t begin_ = 0, end_ = 0;
  std::string why_;
};

}  // namespace

std::unique_ptr<Spool> make_file_spool(const std::string& directory, uint64_t limit) {
  if (limit == 0) return nullptr;
  return std::make_unique<FileSpool>(directory, limit);
}

}  // namespace hvd::agent
