// Reads timelines line by line, aligns their clocks, writes one trace.
#include "cli/timeline_merge.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>

namespace hvd::cli {
namespace {

constexpr int64_t kRowsOfAWorker = 1024;  // as src/timeline/writer.cc numbers threads

/// A line of a timeline: its beginning read, the rest as it is.
struct Event {
  int64_t pid = 0, tid = 0, ts = 0;  // ts in nanoseconds
  std::string_view head, rest;       // {"ph":"X" and ,"dur":... up to the last brace
};

bool take(std::string_view* text, std::string_view part) {
  if (!text->starts_with(part)) return false;
  text->remove_prefix(part.size());
  return true;
}

/// A thousand times as many, and the sum of a few of those, are numbers, too.
constexpr int64_t kMostNumber = std::numeric_limits<int64_t>::max() / 8192;
constexpr int64_t kMostOffset = std::numeric_limits<int64_t>::max() / 2;  // of a clock, from 0

bool take_number(std::string_view* text, int64_t* number, int64_t least = -kMostNumber,
                 int64_t most = kMostNumber) {
  const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number < least || *number > most) return false;
  text->remove_prefix(static_cast<size_t>(stop - text->data()));
  return true;
}

/// Whether this is one whole object: a file may end anywhere.
bool whole(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '{') ++depth;
    if (c == '}' && --depth == 0) return i + 1 == text.size();
  }
  return false;
}

std::optional<Event> parse(std::string_view line) {
  Event event;
  const char* const begin = line.data();
  std::string_view text = line;
  if (!take(&text, R"({"ph":")") || text.size() < 2 || text[1] != '"') return std::nullopt;
  text.remove_prefix(2);
  event.head = {begin, static_cast<size_t>(text.data() - begin)};
  int64_t micro = 0;
  int64_t nano = 0;
  if (!take(&text, R"(,"pid":)") || !take_number(&text, &event.pid) || !take(&text, R"(,"tid":)") ||
      !take_number(&text, &event.tid) || !take(&text, R"(,"ts":)") || !take_number(&text, &micro) ||
      !take(&text, ".") || !take_number(&text, &nano) || micro < 0 || nano < 0 || nano > 999) {
    return std::nullopt;
  }
  if (!whole(line)) return std::nullopt;
  event.ts = micro * 1000 + nano;
  event.rest = text;
  return event;
}

constexpr std::string_view kClock = R"(,"name":"hvd_clock","args":{"wall_offset_ns":)";
constexpr std::string_view kSortIndex = R"(,"name":"process_sort_index","args":{"sort_index":)";

/// A worker's lane in one file.
struct Lane {
  std::string identity;  // the rest of its clock's event: worker, host, process, version
  int64_t offset = 0;    // of its wall clock
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t rank = std::numeric_limits<int32_t>::max();  // the last one
  int64_t pid = 0;                                     // in the merged file
};

using Lanes = std::map<std::pair<size_t, int64_t>, Lane>;  // by file and pid there

/// Calls f(event) for each line of the file that is one. Returns how many others there are but for brackets.
template <class Function>
size_t for_each_event(const std::string& file, Function f) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error(file + ": " + std::strerror(errno));
  size_t unread = 0;
  std::string line;
  while (std::getline(stream, line)) {
    std::string_view text = line;
    while (!text.empty() && (text.back() == ',' || text.back() == '\r' || text.back() == ' '))
      text.remove_suffix(1);
    if (text.empty() || text == "[" || text == "]" || text == "]}" || text.ends_with(R"("traceEvents":[)"))
      continue;
    if (const std::optional<Event> event = parse(text)) {
      f(*event);
    } else {
      ++unread;
    }
  }
  if (stream.bad()) throw std::runtime_error(file + ": " + std::strerror(errno));
  return unread;
}

void survey(size_t index, const std::string& file, Lanes* lanes) {
  for_each_event(file, [&](const Event& event) {
    std::string_view rest = event.rest;
    int64_t number = 0;
    if (take(&rest, kClock) && take_number(&rest, &number, 0, kMostOffset)) {
      Lane& lane = (*lanes)[{index, event.pid}];
      lane.identity = rest;
      lane.offset = number;
    }
    const auto found = lanes->find({index, event.pid});
    if (found == lanes->end()) return;
    found->second.first = std::min(found->second.first, event.ts);
    rest = event.rest;
    if (take(&rest, kSortIndex) && take_number(&rest, &number)) found->second.rank = number;
  });
}

/// Each worker gets a number of its own; what one process wrote into several files goes into one lane.
/// Returns the numbers in the order of ranks.
std::vector<int64_t> number_lanes(Lanes* lanes) {
  std::map<std::string, int64_t> known;
  std::set<int64_t> taken;
  std::map<int64_t, int64_t> ranks;
  int64_t next = 1;
  for (auto& [place, lane] : *lanes) {
    const auto found = known.find(lane.identity);
    if (found != known.end()) {
      lane.pid = found->second;
    } else {
      lane.pid = place.second;
      while (taken.contains(lane.pid)) lane.pid = next++;
      taken.insert(lane.pid);
      known.emplace(lane.identity, lane.pid);
    }
    ranks[lane.pid] = lane.rank;
  }
  std::vector<int64_t> order(taken.begin(), taken.end());
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return ranks[a] < ranks[b]; });
  return order;
}

class Output {
 public:
  explicit Output(const std::string& file) : file_(file), stream_(create(file)) {
    if (stream_ == nullptr) fail();
  }
  void put(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stream_.get()) != text.size()) fail();
  }
  void event(std::string_view head, int64_t pid, int64_t row, int64_t ts, std::string_view rest) {
    char numbers[128];
    const int64_t thread = pid * kRowsOfAWorker + row;
    std::snprintf(numbers, sizeof numbers, R"(,"pid":%lld,"tid":%lld,"ts":%lld.%03lld)",
                  static_cast<long long>(pid), static_cast<long long>(thread),
                  static_cast<long long>(ts / 1000), static_cast<long long>(ts % 1000));
    put(count_++ == 0 ? "" : ",\n");
    put(head);
    put(numbers);
    put(rest);
  }
  void close() {
    if (std::fclose(stream_.release()) != 0) fail();
  }
  size_t count() const { return count_; }

 private:
  struct Close {
    void operator()(FILE* stream) const { std::fclose(stream); }
  };
  // A link in its place may point anywhere, and so may a second name of a file.
  static FILE* create(const std::string& file) {
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    struct stat info {};
    if (fd < 0 || ::fstat(fd, &info) != 0) return nullptr;
    const bool file_alone = !S_ISREG(info.st_mode) || info.st_nlink == 1;
    if (file_alone && (!S_ISREG(info.st_mode) || ::ftruncate(fd, 0) == 0)) return ::fdopen(fd, "wb");
    ::close(fd);
    if (!file_alone) throw std::runtime_error(file + ": expected a file without a second name (hard link)");
    return nullptr;
  }
  [[noreturn]] void fail() const { throw std::runtime_error(file_ + ": " + std::strerror(errno)); }
  const std::string file_;
  std::unique_ptr<FILE, Close> stream_;
  size_t count_ = 0;
};

}  // namespace

Merged merge_timelines(const std::string& out, const std::vector<std::string>& in) {
  Merged merged;
  Lanes lanes;
  std::error_code ignored;
  for (size_t i = 0; i < in.size(); ++i) {
    if (std::filesystem::equivalent(in[i], out, ignored)) {
      throw std::runtime_error(out + " is the file to be written and one of those to be read");
    }
    survey(i, in[i], &lanes);
  }
  if (lanes.empty())
    throw std::runtime_error("no event in any of the files: expected timelines that libhvd wrote");
  const std::vector<int64_t> order = number_lanes(&lanes);
  int64_t base = std::numeric_limits<int64_t>::max();
  for (const auto& [place, lane] : lanes) base = std::min(base, lane.first + lane.offset);

  Output output(out);
  output.put(R"({"displayTimeUnit":"ms","traceEvents":[)"
             "\n");
  for (size_t i = 0; i < order.size(); ++i) {
    output.event(R"({"ph":"M")", order[i], 0, 0, std::string(kSortIndex) + std::to_string(i) + "}}");
  }
  for (size_t i = 0; i < in.size(); ++i) {
    size_t orphans = 0;
    size_t events = 0;
    const size_t unread = for_each_event(in[i], [&](const Event& event) {
      const auto found = lanes.find({i, event.pid});
      if (found == lanes.end()) {
        ++orphans;
        return;
      }
      ++events;
      const Lane& lane = found->second;
      const int64_t row = event.tid - event.pid * kRowsOfAWorker;
      const int64_t ts = std::max<int64_t>(event.ts + lane.offset - base, 0);
      std::string_view rest = event.rest;
      if (rest.starts_with(kSortIndex)) return;
      int64_t number = 0;
      if (take(&rest, kClock) && take_number(&rest, &number, 0, kMostOffset)) {
        // So that the merged file can be merged again.
        output.event(event.head, lane.pid, row, ts,
                     std::string(kClock) + std::to_string(base) + std::string(rest));
      } else {
        output.event(event.head, lane.pid, row, ts, event.rest);
      }
    });
    if (unread > 0)
      merged.notes.push_back(in[i] + ": " + std::to_string(unread) + " lines are no whole events: left out");
    if (orphans > 0)
      merged.notes.push_back(in[i] + ": " + std::to_string(orphans) + " events without a clock: left out");
    if (events == 0) merged.notes.push_back(in[i] + ": no event: expected a timeline that libhvd wrote");
  }
  output.put("\n]}\n");
  output.close();
  merged.lanes = order.size();
  merged.events = output.count();
  return merged;
}

}  // namespace hvd::cli
