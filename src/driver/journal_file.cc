// Finds, makes, writes and syncs the files of the journal.
#include "driver/journal_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "base/thread.h"
#include "driver/follower.h"

namespace hvd::driver {
namespace {

constexpr std::string_view kPrefix = "journal.";
constexpr size_t kMostBytes = size_t{1} << 30;
constexpr size_t kLong = size_t{1} << 20;

std::string file_of(const std::string& directory, uint64_t term) {
  return fmt::format("{}/{}{:016x}", directory, kPrefix, term);
}

std::vector<uint64_t> terms_in(const std::string& directory) {
  std::vector<uint64_t> terms;
  for (const std::string& name : names_in(directory)) {
    if (!name.starts_with(kPrefix)) continue;
    uint64_t term = 0;
    const char* const end = name.data() + name.size();
    const auto [stop, bad] = std::from_chars(name.data() + kPrefix.size(), end, term, 16);
    if (bad == std::errc() && stop == end && term > 0) terms.push_back(term);
  }
  std::sort(terms.begin(), terms.end(), std::greater<>());
  return terms;
}

/// A shared lock: several may ask at once, and NFS grants it for a descriptor that only reads.
bool is_locked(int fd) { return ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK; }

uint64_t in_ns(const timespec& t) {
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

JournalFile::Look JournalFile::look(const std::string& directory) {
  Look look;
  const std::vector<uint64_t> terms = terms_in(directory);
  if (terms.empty()) return look;
  look.term = terms.front();
  const int fd = ::open(file_of(directory, look.term).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return look;
  look.locked = is_locked(fd);
  struct stat info {};
  if (::fstat(fd, &info) == 0) look.stamp = in_ns(info.st_mtim) ^ (static_cast<uint64_t>(info.st_size) << 40);
  ::close(fd);
  return look;
}

JournalFile::Found JournalFile::find(const std::string& directory) {
  struct stat place {};
  const bool made = ::stat(directory.c_str(), &place) != 0;
  int error = make_directories(directory);
  // The next driver believes what it reads here: nobody else may write there.
  if (error == 0 && made && ::chmod(directory.c_str(), S_IRWXU) != 0) error = errno;
  if (error == 0 && ::access(directory.c_str(), W_OK | X_OK) != 0) error = errno;
  if (error != 0) {
    throw Error(HVD_UNAVAILABLE, fmt::format("option journal: directory {} can't be used: {}", directory,
                                             std::strerror(error)));
  }
  constexpr mode_t kShared =
      S_ISVTX | S_IWOTH;  // as /tmp; a volume of a container may be open to all and have one user
  if (::stat(directory.c_str(), &place) == 0 && (place.st_mode & kShared) == kShared) {
    throw Error(HVD_INVALID,
                fmt::format("option journal: all users of this machine may write to {}: expected a "
                            "directory of this user's own, as one below it",
                            directory));
  }
  Found found;
  for (const uint64_t term : terms_in(directory)) {
    found.term = std::max(found.term, term);
    const std::string path = file_of(directory, term);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (term == found.term) found.driver_lives = is_locked(fd);
    struct stat info {};
    const bool known = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    ::close(fd);
    std::string bytes;  // read_file takes all the memory that it may need
    if (!known || !read_file(path, std::min(kMostBytes, static_cast<size_t>(info.st_size)), &bytes)) continue;
    found.journal = membership::read_journal(bytes);
    if (found.journal.began.term == 0)
      continue;  // its driver came no further than making it: the one before tells
    break;
  }
  return found;
}

JournalFile::JournalFile(std::string directory, uint64_t term, LoggerPtr logger)
    : directory_(std::move(directory)), term_(term), logger_(std::move(logger)) {
  make();
  if (const int directory_fd = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      directory_fd >= 0) {
    ::fsync(directory_fd);
    ::close(directory_fd);
  }
  thread_ = start_thread("hvd-journal", [this] { run(); });
}

/// Locked before anybody can see it: who looked in between would take this driver for dead.
void JournalFile::make() {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  const std::string path = file_of(directory_, term_);
  const std::string own = fmt::format("{}/own.{:016x}.{}", directory_, term_, ::getpid());
  ::unlink(own.c_str());
  fd_ = ::open(own.c_str(), kFlags, 0600);
  if (fd_ >= 0) ::flock(fd_, LOCK_EX | LOCK_NB);
  const bool linked = fd_ >= 0 && ::link(own.c_str(), path.c_str()) == 0;
  int why = linked ? 0 : errno;
  ::unlink(own.c_str());
  if (linked) return;
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (why != EEXIST) {  // a file system without hard links
    fd_ = ::open(path.c_str(), kFlags, 0600);
    why = errno;
    if (fd_ >= 0) {
      ::flock(fd_, LOCK_EX | LOCK_NB);
      return;
    }
  }
  throw Error(HVD_UNAVAILABLE,
              why == EEXIST ? fmt::format("another driver has taken the job over already: {} exists", path)
                            : fmt::format("{} can't be made: {}", path, std::strerror(why)));
}

JournalFile::~JournalFile() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  ::close(fd_);
}

bool JournalFile::put(int fd, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

/// What is known replaces what has led to it.
bool JournalFile::begin_anew(const std::string& bytes) {
  const std::string path = file_of(directory_, term_);
  const std::string next = fmt::format("{}/next.{:016x}", directory_, term_);
  ::unlink(next.c_str());
  const int fd = ::open(next.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  ::flock(fd, LOCK_EX | LOCK_NB);
  if (!put(fd, bytes) || ::rename(next.c_str(), path.c_str()) != 0) {
    ::close(fd);
    ::unlink(next.c_str());
    return false;
  }
  std::lock_guard lock(mutex_);  // not while it is synced
  ::close(std::exchange(fd_, fd));
  size_ = bytes.size();
  ++anew_;
  return true;
}

JournalPart JournalFile::read(const JournalPart& wanted, std::string* ret_bytes) const {
  const std::string path = file_of(directory_, term_);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  struct stat info {};
  const bool known = fd >= 0 && ::fstat(fd, &info) == 0;
  JournalPart part{term_, anew_, 0, known ? static_cast<uint64_t>(info.st_size) : 0, {}};
  if (wanted.term == part.term && wanted.file == part.file) part.offset = std::min(wanted.offset, part.size);
  ret_bytes->resize(std::min<uint64_t>(kMostPart, part.size - part.offset));
  const ssize_t n =
      known ? ::pread(fd, ret_bytes->data(), ret_bytes->size(), static_cast<off_t>(part.offset)) : -1;
  const int why = errno;
  if (fd >= 0) ::close(fd);
  if (n < 0) throw Error(HVD_UNAVAILABLE, fmt::format("{} can't be read: {}", path, std::strerror(why)));
  ret_bytes->resize(static_cast<size_t>(n));
  return part;
}

void JournalFile::save(const std::string& directory, uint64_t term, const std::string& bytes) {
  static_cast<void>(find(directory));  // makes it, and refuses one that is shared
  const std::string path = file_of(directory, term);
  ::unlink(path.c_str());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  const bool written = fd >= 0 && put(fd, bytes);
  const int why = errno;
  if (fd >= 0) ::close(fd);
  if (!written)
    throw Error(HVD_UNAVAILABLE, fmt::format("{} can't be written: {}", path, std::strerror(why)));
}

void JournalFile::write(const std::vector<membership::Record>& records) {
  if (failed_) return;
  std::string bytes;
  for (const membership::Record& record : records) {
    const std::string encoded = membership::encode(record);
    if (std::holds_alternative<membership::TermBegan>(record)) head_ = encoded;
    if (std::holds_alternative<membership::KnownJob>(record)) {
      snapshot_ = encoded.size();
      if (size_ > std::max(kLong, 8 * snapshot_) && begin_anew(head_ + encoded)) {
        bytes.clear();
        continue;
      }
    }
    bytes += encoded;
  }
  if (!put(fd_, bytes)) {
    failed_ = true;  // what a next driver needs its workers can tell: no reason to end the job
    logger_->warning("the journal in {} can't be written, the job goes on without: {}", directory_,
                     std::strerror(errno));
    // A next driver must not take it for whole, and workers that it does not tell of for strangers. Its name
    // stays: it tells the term.
    struct stat info {};
    if (::fstat(fd_, &info) == 0 && info.st_size > 0) {
      [[maybe_unused]] const int cut = ::ftruncate(fd_, info.st_size - 1);
    }
  }
  size_ += bytes.size();
}

void JournalFile::sync() {
  {
    std::lock_guard lock(mutex_);
    wanted_ = true;
  }
  changed_.notify_all();
}

void JournalFile::beat() {
  {
    std::lock_guard lock(mutex_);
    beaten_ = true;
  }
  changed_.notify_all();
}

void JournalFile::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return wanted_ || beaten_ || ending_; });
    if (!wanted_ && !beaten_) return;
    const bool sync = std::exchange(wanted_, false), touch = std::exchange(beaten_, false);
    const int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 3);
    lock.unlock();
    if (fd >= 0) {
      if (touch) ::futimens(fd, nullptr);
      if (sync) ::fdatasync(fd);
      ::close(fd);
    }
    lock.lock();
  }
}

bool JournalFile::superseded() const {
  // Whoever takes over takes the next number; it is looked for by name, without reading the directory.
  if (::access(file_of(directory_, term_ + 1).c_str(), F_OK) == 0) return true;
  // Its successors' successors have removed its file, and that of the next one.
  return ::access(file_of(directory_, term_).c_str(), F_OK) != 0 && errno == ENOENT &&
         look(directory_).term > term_;
}

void JournalFile::remove_older(const std::string& directory, uint64_t term) {
  for (const uint64_t old : terms_in(directory)) {
    if (old + 1 < term) ::unlink(file_of(directory, old).c_str());
  }
}

}  // namespace hvd::driver
