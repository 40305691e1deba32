// Parses host files and the variables of Slurm.
#include "driver/hostfile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "base/file.h"
#include "base/status.h"
#include "base/text.h"
#include "driver/discovery.h"

namespace hvd::driver {
namespace {

constexpr size_t kMostBytes = size_t{16} << 20;
constexpr size_t kMostHosts = size_t{1} << 16;
constexpr size_t kLongestName = 255;
constexpr size_t kMostDigits = 18;  // of a node's number

template <class Number>
bool parse_number(std::string_view text, Number* ret_number) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *ret_number);
  return !text.empty() && error == std::errc() && stop == text.data() + text.size();
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

[[noreturn]] void bad_nodes(const std::string& nodes, const std::string& what) {
  throw Error(HVD_INVALID, fmt::format("SLURM_JOB_NODELIST is '{}': {}", printable(nodes, 200), what));
}

/// "a[1-3,7]b[0-1]": every name that it stands for.
void expand(const std::string& nodes, std::string_view prefix, std::string_view rest,
            std::vector<std::string>* names) {
  const size_t open = rest.find('[');
  if (open == std::string_view::npos) {
    if (prefix.size() + rest.size() > kLongestName)
      bad_nodes(nodes, fmt::format("a name of {} bytes: expected at most {}", prefix.size() + rest.size(),
                                   kLongestName));
    names->push_back(std::string(prefix) + std::string(rest));
    if (names->size() > kMostHosts) bad_nodes(nodes, fmt::format("more than {} nodes", kMostHosts));
    return;
  }
  const size_t close = rest.find(']', open);
  if (close == std::string_view::npos) bad_nodes(nodes, "expected ] after [");
  const std::string_view ranges = rest.substr(open + 1, close - open - 1);
  for (size_t at = 0; at <= ranges.size();) {
    const size_t end = std::min(ranges.find(',', at), ranges.size());
    const std::string_view range = ranges.substr(at, end - at);
    at = end + 1;
    const size_t dash = std::min(range.find('-'), range.size());
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == range.size() ? low : range.substr(dash + 1);
    uint64_t first = 0;
    uint64_t last = 0;
    // The length bounds the depth as well: each pair of brackets brings a digit.
    if (prefix.size() + open + low.size() > kLongestName)
      bad_nodes(nodes, fmt::format("a name of more than {} bytes", kLongestName));
    if (low.size() > kMostDigits || high.size() > kMostDigits || !parse_number(low, &first) ||
        !parse_number(high, &last) || last < first || last - first >= kMostHosts)
      bad_nodes(nodes, fmt::format("expected a range of numbers, not '{}'", printable(range, 40)));
    for (uint64_t n = first; n <= last; ++n) {
      const std::string name = fmt::format("{}{}{:0{}}", prefix, rest.substr(0, open), n, low.size());
      expand(nodes, name, rest.substr(close + 1), names);
    }
  }
}

}  // namespace

std::vector<membership::HostSlots> parse_hostfile(const std::string& name, const std::string& text,
                                                  int32_t slots_per_host) {
  std::vector<membership::HostSlots> hosts;
  std::unordered_map<std::string, size_t> place;
  int64_t slots = 0;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    const auto bad = [&](const std::string& what) {
      throw Error(HVD_INVALID,
                  fmt::format("host file {}, line {}: {}; expected host [slots=N]", name, number, what));
    };
    const std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    std::vector<membership::HostSlots> one;
    try {
      one = parse_fixed_hosts(std::string(words[0]), slots_per_host);
    } catch (const Error& error) { bad(error.what()); }
    if (one.size() != 1) bad(fmt::format("'{}' is no host", printable(words[0], 80)));
    for (size_t i = 1; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      const std::string_view key = words[i].substr(0, equals);
      if (key == "max_slots" || key == "max-slots") continue;
      if (key != "slots" || equals == std::string_view::npos)
        bad(fmt::format("'{}' is not known", printable(words[i], 80)));
      if (!parse_number(words[i].substr(equals + 1), &one[0].slots) || one[0].slots < 1 ||
          one[0].slots > kMostSlots)
        bad(fmt::format("'{}': expected 1 to {} slots", printable(words[i], 80), kMostSlots));
    }
    if (const auto many = too_many_slots(one[0].name, one[0].slots, slots)) bad(*many);
    slots += one[0].slots;
    const auto [same, fresh] = place.emplace(one[0].name, hosts.size());
    if (fresh) {
      hosts.push_back(one[0]);
    } else {
      hosts[same->second].slots += one[0].slots;
    }
    if (hosts.size() > kMostHosts) bad(fmt::format("more than {} hosts", kMostHosts));
  }
  if (hosts.empty()) throw Error(HVD_INVALID, fmt::format("host file {} names no host", name));
  return hosts;
}

std::vector<membership::HostSlots> read_hostfile(const std::string& path, int32_t slots_per_host) {
  std::string text;
  errno = 0;
  if (!read_file(path, kMostBytes, &text))
    throw Error(HVD_INVALID, fmt::format("host file {} can't be read: {}", path, std::strerror(errno)));
  return parse_hostfile(path, text, slots_per_host);
}

std::vector<membership::HostSlots> parse_slurm_nodes(const std::string& nodes, const std::string& tasks,
                                                     int32_t slots_per_host) {
  std::vector<std::string> names;
  for (size_t begin = 0, depth = 0, i = 0; i <= nodes.size(); ++i) {
    if (i < nodes.size() && nodes[i] == '[') ++depth;
    if (i < nodes.size() && nodes[i] == ']' && depth > 0) --depth;
    if (i < nodes.size() && (nodes[i] != ',' || depth > 0)) continue;
    if (i > begin) expand(nodes, "", std::string_view(nodes).substr(begin, i - begin), &names);
    begin = i + 1;
  }
  if (names.empty()) bad_nodes(nodes, "it names no node");
  std::vector<int32_t> slots;
  for (size_t at = 0; at < tasks.size();) {
    const size_t end = std::min(tasks.find(',', at), tasks.size());
    const std::string_view part = std::string_view(tasks).substr(at, end - at);
    at = end + 1;
    const size_t open = std::min(part.find("(x"), part.size());
    int32_t count = 0;
    int32_t times = 1;
    const bool repeated = open < part.size();
    if (!parse_number(part.substr(0, open), &count) || count < 1 || (repeated && part.back() != ')') ||
        (repeated && (!parse_number(part.substr(open + 2, part.size() - open - 3), &times) || times < 1 ||
                      static_cast<size_t>(times) > names.size()))) {
      throw Error(HVD_INVALID, fmt::format("SLURM_TASKS_PER_NODE is '{}': expected numbers, as 2(x3),1",
                                           printable(tasks, 200)));
    }
    if (slots.size() + static_cast<size_t>(times) > names.size() || count > kMostSlots) {
      throw Error(HVD_INVALID,
                  fmt::format("SLURM_TASKS_PER_NODE is '{}': expected at most {} tasks for each of {} nodes",
                              printable(tasks, 200), kMostSlots, names.size()));
    }
    slots.insert(slots.end(), static_cast<size_t>(times), count);
  }
  if (!slots.empty() && slots.size() != names.size()) {
    throw Error(HVD_INVALID,
                fmt::format("SLURM_TASKS_PER_NODE ('{}') tells of {} nodes, SLURM_JOB_NODELIST ('{}') of {}",
                            printable(tasks, 100), slots.size(), printable(nodes, 100), names.size()));
  }
  std::vector<membership::HostSlots> hosts;
  int64_t total = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    hosts.push_back({names[i], slots.empty() ? slots_per_host : slots[i]});
    if (const auto many = too_many_slots(names[i], hosts.back().slots, total))
      throw Error(HVD_INVALID, fmt::format("the nodes of SLURM_JOB_NODELIST have {}", *many));
    total += hosts.back().slots;
  }
  return hosts;
}

}  // namespace hvd::driver
