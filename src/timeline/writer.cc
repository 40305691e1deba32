// Writes events as JSON, with names and escapes.
#include "timeline/writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iterator>

namespace hvd {
namespace {

constexpr uint64_t kRowsOfAWorker =
    1024;  // so that (worker, row) gives a thread number of its own, also merged
constexpr uint64_t kFirstOperationRow = 10;  // of kRowsOfAWorker
constexpr size_t kMostRows = 1000;
constexpr size_t kFlush = 256 << 10;

/// Length of the character of UTF-8 that `text` begins with, or 0 if it begins with none.
size_t character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first < 0xE0   ? 2
                        : (first & 0xF0U) == 0xE0       ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool beyond = (first == 0xED && second >= 0xA0) || (first == 0xF4 && second >= 0x90);
  return overlong || beyond ? 0 : length;
}

int64_t nanoseconds(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

}  // namespace

void append_json(fmt::memory_buffer* out, std::string_view text) {
  const auto put = [&](std::string_view part) { out->append(part.data(), part.data() + part.size()); };
  put("\"");
  while (!text.empty()) {
    const size_t length = character(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      put("\\ufffd");
    } else if (c == '"' || c == '\\') {
      const char escaped[] = {'\\', text[0]};
      put({escaped, 2});
    } else if (c < 0x20 || c == 0x7F) {
      fmt::format_to(std::back_inserter(*out), "\\u{:04x}", c);
    } else {
      put(text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  put("\"");
}

/// Takes records out of memory. They are the timeline's own, so that sizes need no check.
class Timeline::Writer::Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::string_view text(size_t size) {
    const std::string_view result(reinterpret_cast<const char*>(bytes_.data()), size);
    bytes_ = bytes_.subspan(size);
    return result;
  }

 private:
  std::span<const uint8_t> bytes_;
};

Timeline::Writer::Writer(std::string file, uint64_t worker, std::string host)
    : file_(std::move(file)), worker_(worker), host_(std::move(host)) {
  const auto failed = [&](const char* what) {
    const int number = errno;
    if (fd_ >= 0) ::close(fd_);
    Status status(HVD_UNAVAILABLE, fmt::format("timeline {}: {}: {}", file_, what, std::strerror(number)));
    status.vendor_code = number;
    return Error(status);
  };
  // Not blocking, for something that is no file: a pipe without a reader would hold up the program.
  fd_ = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW, 0644);
  if (fd_ < 0) throw failed("can't be opened");
  struct stat info {};
  if (::fstat(fd_, &info) != 0) throw failed("fstat");
  // A second name may be somebody else's file, linked here for this process to empty it.
  if (!S_ISREG(info.st_mode) || info.st_nlink > 1) {
    ::close(fd_);
    throw Error(HVD_INVALID, fmt::format("timeline {}: expected a file{}", file_,
                                         S_ISREG(info.st_mode) ? " without a second name (hard link)" : ""));
  }
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw failed("another timeline writes it");
  if (::ftruncate(fd_, 0) != 0) throw failed("can't be emptied");
  put("[\n");
  clock(nanoseconds(CLOCK_MONOTONIC));
  flush();
  if (failure_) {
    ::close(fd_);
    throw Error(*failure_);
  }
}

Timeline::Writer::~Writer() {
  if (fd_ >= 0) ::close(fd_);
}

// ---- the text of one event; the order of fields is what hvdrun --merge-timeline reads ----

void Timeline::Writer::event(const char* phase, uint64_t row, int64_t at, std::optional<int64_t> length) {
  if (!std::exchange(first_, false)) put(",\n");
  auto out = std::back_inserter(text_);
  fmt::format_to(out, R"({{"ph":"{}","pid":{},"tid":{},"ts":{}.{:03})", phase, worker_,
                 worker_ * kRowsOfAWorker + row, at / 1000, at % 1000);
  if (length) fmt::format_to(out, R"(,"dur":{}.{:03})", *length / 1000, *length % 1000);
}

void Timeline::Writer::named(std::string_view name, const char* category) {
  put(R"(,"name":)");
  append_json(&text_, name);
  if (category != nullptr) fmt::format_to(std::back_inserter(text_), R"(,"cat":"{}")", category);
}

void Timeline::Writer::arguments(Reader& reader, unsigned fields, const char* kind) {
  if (fields == 0 && kind == nullptr) return;
  auto out = std::back_inserter(text_);
  put(R"(,"args":{)");
  const char* comma = "";
  if (kind != nullptr) {
    fmt::format_to(out, R"("kind":"{}")", kind);
    comma = ",";
  }
  for (unsigned i = 0; i < fields; ++i) {
    const auto field = reader.take<TimelineFieldHead>();
    fmt::format_to(out, R"({}"{}":)", comma, field.key);
    comma = ",";
    if (field.text_size < 0) {
      fmt::format_to(out, "{}", field.number);
    } else {
      append_json(&text_, reader.text(static_cast<size_t>(field.text_size)));
    }
  }
  put("}");
}

/// Also whenever the place changes: a clock that was set meanwhile is no mistake then.
void Timeline::Writer::clock(int64_t at) {
  const int64_t offset = nanoseconds(CLOCK_REALTIME) - nanoseconds(CLOCK_MONOTONIC);
  event("M", 0, at);
  named("hvd_clock", nullptr);
  fmt::format_to(std::back_inserter(text_), R"(,"args":{{"wall_offset_ns":{},"worker":{},"host":)", offset,
                 worker_);
  append_json(&text_, host_);
  fmt::format_to(std::back_inserter(text_), R"(,"process":{},"version":"{}"}})", ::getpid(),
                 HVD_VERSION_STRING);
  close_event();
}

void Timeline::Writer::row_name(uint64_t row, std::string_view name, int64_t at) {
  event("M", row, at);
  named("thread_name", nullptr);
  fmt::format_to(std::back_inserter(text_), R"(,"args":{{"name":"{}"}})", name);
  close_event();
  event("M", row, at);
  named("thread_sort_index", nullptr);
  fmt::format_to(std::back_inserter(text_), R"(,"args":{{"sort_index":{}}})", row);
  close_event();
}

void Timeline::Writer::place(const Record& record, Reader& reader) {
  const int64_t at = record.at[0];
  int64_t numbers[3] = {0, 0, 0};  // generation, rank, size
  for (int64_t& number : numbers) number = reader.take<TimelineFieldHead>().number;
  clock(at);
  auto out = std::back_inserter(text_);
  event("M", 0, at);
  named("process_name", nullptr);
  put(R"(,"args":{"name":)");
  append_json(&text_, fmt::format("rank {} (host {}, worker {})", numbers[1], host_, worker_));
  put("}");
  close_event();
  event("M", 0, at);
  named("process_sort_index", nullptr);
  fmt::format_to(out, R"(,"args":{{"sort_index":{}}})", numbers[1]);
  close_event();
  row_name(static_cast<uint64_t>(TimelineRow::kGenerations), "generations", at);
  row_name(static_cast<uint64_t>(TimelineRow::kState), "state", at);
  event("i", static_cast<uint64_t>(TimelineRow::kGenerations), at);
  named(fmt::format("generation {}", numbers[0]), "generation");
  fmt::format_to(out, R"(,"s":"t","args":{{"generation":{},"rank":{},"size":{}}})", numbers[0], numbers[1],
                 numbers[2]);
  close_event();
}

// Operations overlap, and slices of one row must not: each takes the first row that is free for all its time.
std::optional<uint64_t> Timeline::Writer::row_for(int64_t began, int64_t ended) {
  const auto free =
      std::find_if(rows_ends_.begin(), rows_ends_.end(), [&](int64_t end) { return end <= began; });
  const auto index = static_cast<size_t>(free - rows_ends_.begin());
  if (free == rows_ends_.end()) {
    if (index == kMostRows) return std::nullopt;
    rows_ends_.push_back(ended);
    row_name(kFirstOperationRow + index, index == 0 ? "operations" : fmt::format("operations {}", index + 1),
             began);
  } else {
    *free = ended;
  }
  return kFirstOperationRow + index;
}

void Timeline::Writer::operation(const Record& record, Reader& reader, std::string_view name) {
  const int64_t submitted = record.at[0];
  const int64_t done = std::max(record.at[3], submitted);
  const bool was_matched = record.at[1] != 0 || record.at[2] != 0;
  const int64_t running = record.at[2] != 0 ? std::clamp(record.at[2], submitted, done) : 0;
  const int64_t matched = record.at[1] != 0
                              ? std::clamp(record.at[1], submitted, running != 0 ? running : done)
                          : running != 0 ? running
                                         : done;
  const std::optional<uint64_t> row = row_for(submitted, done);
  if (!row) {
    ++crowded_;
    for (unsigned i = 0; i < record.fields; ++i) {
      const auto field = reader.take<TimelineFieldHead>();
      if (field.text_size > 0) reader.text(static_cast<size_t>(field.text_size));
    }
    return;
  }
  // The outer one first: viewers nest slices that begin together in the order in which they come.
  event("X", *row, submitted, done - submitted);
  named(name, "operation");
  arguments(reader, record.fields, record.kind);
  close_event();
  const auto phase = [&](const char* what, int64_t from, int64_t to) {
    event("X", *row, from, to - from);
    named(what, "phase");
    close_event();
  };
  phase("NEGOTIATE", submitted, matched);
  if (!was_matched) return;
  if (running > matched) phase("QUEUE", matched, running);
  phase(record.kind, running != 0 ? running : matched, done);
}

void Timeline::Writer::write(std::span<const uint8_t> records, uint64_t dropped) {
  try {
    int64_t at = 0;
    Reader reader(records);
    while (!reader.empty() && !failure_) {
      const auto record = reader.take<Record>();
      const std::string_view name = reader.text(record.name_size);
      at = record.at[0];
      switch (record.type) {
        case Type::kPlace: place(record, reader); break;
        case Type::kOperation: operation(record, reader, name); break;
        default: {
          const auto row = static_cast<uint64_t>(record.row);
          if (record.type == Type::kSlice) event("X", row, at, std::max<int64_t>(record.at[1] - at, 0));
          if (record.type == Type::kBegin) event("B", row, at);
          if (record.type == Type::kEnd) event("E", row, at);
          if (record.type == Type::kInstant) event("i", row, at);
          if (record.type != Type::kEnd)
            named(name, record.row == TimelineRow::kState ? "state" : "generation");
          if (record.type == Type::kInstant) put(R"(,"s":"t")");
          arguments(reader, record.fields);
          close_event();
        }
      }
      if (text_.size() >= kFlush) flush();
    }
    if (dropped + crowded_ > 0) {
      event("i", static_cast<uint64_t>(TimelineRow::kGenerations), nanoseconds(CLOCK_MONOTONIC));
      named(fmt::format("{} events dropped", dropped + crowded_), "generation");
      fmt::format_to(std::back_inserter(text_), R"(,"s":"t","args":{{"dropped":{}}})", dropped + crowded_);
      close_event();
      crowded_ = 0;
    }
    flush();
  } catch (const std::exception& error) {
    if (!failure_) failure_ = Status(HVD_INTERNAL, fmt::format("timeline {}: {}", file_, error.what()));
  }
}

void Timeline::Writer::finish() {
  try {
    put("\n]\n");
    flush();
  } catch (const std::exception& error) {
    if (!failure_) failure_ = Status(HVD_INTERNAL, fmt::format("timeline {}: {}", file_, error.what()));
  }
}

void Timeline::Writer::flush() {
  size_t done = 0;
  while (done < text_.size() && !failure_) {
    const ssize_t n = ::write(fd_, text_.data() + done, text_.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      const int number = n == 0 ? EIO : errno;
      failure_ = Status(HVD_UNAVAILABLE, fmt::format("timeline {}: {}", file_, std::strerror(number)));
      failure_->vendor_code = number;
      // Cuts off the record that was half written.
      static_cast<void>(::ftruncate(fd_, written_) == 0);
    }
  }
  if (!failure_) written_ += static_cast<int64_t>(text_.size());
  text_.clear();
}

}  // namespace hvd
