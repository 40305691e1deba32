// Templates for starting agents, and this machine's names.
#include "agent/command.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/file.h"
#include "base/status.h"

namespace hvd::agent {
namespace {

constexpr size_t kMostEndpoints = 8;

[[noreturn]] void invalid(const std::string& text, const std::string& what) {
  throw Error(
      HVD_INVALID,
      fmt::format("option agent is '{}': {}; expected a command with {{host}} in it, as 'ssh {{host}}'", text,
                  what));
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n'; }

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("@%_-+=:,./").find(c) != std::string_view::npos;
}

/// Whether this program joins its words and has a shell on the other side read them again.
bool has_remote_shell(const std::string& program) {
  const std::string name = program.substr(program.rfind('/') + 1);
  for (const char* known : {"ssh", "rsh", "remsh", "oarsh", "gsissh", "autossh"}) {
    if (name == known) return true;
  }
  return false;
}

void replace_all(std::string* text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text->find(what, at)) != std::string::npos; at += by.size())
    text->replace(at, what.size(), by);
}

struct Interfaces {
  ifaddrs* first = nullptr;
  Interfaces() {
    if (::getifaddrs(&first) != 0) first = nullptr;
  }
  Interfaces(const Interfaces&) = delete;
  Interfaces& operator=(const Interfaces&) = delete;
  ~Interfaces() {
    if (first != nullptr) ::freeifaddrs(first);
  }
};

struct Address {
  std::string text, interface;
  bool loopback = false, link_local = false, v6 = false;
};

std::vector<Address> addresses() {
  std::vector<Address> result;
  const Interfaces interfaces;
  for (const ifaddrs* i = interfaces.first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    Address address;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (i->ifa_addr->sa_family == AF_INET) {
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text.data(),
                  text.size());
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& in6 = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
      ::inet_ntop(AF_INET6, &in6, text.data(), text.size());
      address.v6 = true;
      address.link_local = IN6_IS_ADDR_LINKLOCAL(&in6);
    } else {
      continue;
    }
    address.text = text.data();
    address.interface = i->ifa_name;
    address.loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
    result.push_back(std::move(address));
  }
  return result;
}

/// The interface of the default route (IPv4), or "": bridges of containers and the like come after it.
std::string main_interface() {
  std::string table;
  if (!read_file("/proc/net/route", size_t{1} << 16, &table)) return "";
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = std::min(table.find('\n', begin), table.size());
    const std::string line = table.substr(begin, end - begin);
    begin = end + 1;
    const size_t tab = line.find('\t');
    if (tab != std::string::npos && line.compare(tab + 1, 9, "00000000\t") == 0) return line.substr(0, tab);
  }
  return "";
}

std::string endpoint(const Address& address, uint16_t port) {
  return address.v6 ? fmt::format("[{}]:{}", address.text, port) : fmt::format("{}:{}", address.text, port);
}

}  // namespace

std::vector<std::string> parse_template(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && is_blank(c)) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote != '\'' && c == '\\') {
      if (++i == text.size()) invalid(text, "it ends with a backslash");
      words.back() += text[i];
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) invalid(text, "a quote is not closed");
  if (words.empty()) invalid(text, "it has no word");
  bool any = false;
  for (const std::string& word : words) {
    for (size_t at = 0; (at = word.find('{', at)) != std::string::npos; ++at) {
      const size_t end = word.find('}', at);
      const std::string name = word.substr(at, end == std::string::npos ? end : end + 1 - at);
      if (name != "{host}") invalid(text, fmt::format("{} is not known", name));
      any = true;
    }
  }
  if (!any) invalid(text, "it has no {host}");
  return words;
}

std::string quoted(const std::string& word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string shown(const std::vector<std::string>& words) {
  std::string result;
  for (const std::string& word : words) result += (result.empty() ? "" : " ") + quoted(word);
  return result;
}

std::vector<std::string> agent_command(const std::vector<std::string>& words, const std::string& host,
                                       const std::vector<std::string>& agent) {
  std::vector<std::string> command = words;
  for (std::string& word : command) replace_all(&word, "{host}", host);
  const bool shell = has_remote_shell(words.front());
  for (const std::string& word : agent) command.push_back(shell ? quoted(word) : word);
  return command;
}

std::set<std::string> own_names() {
  std::set<std::string> names = {"localhost", "localhost.localdomain", "ip6-localhost"};
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0 && name[0] != 0) {
    const std::string full = name.data();
    names.insert(full);
    names.insert(full.substr(0, full.find('.')));
  }
  for (const Address& address : addresses()) names.insert(address.text);
  return names;
}

bool is_own(const std::set<std::string>& names, const std::string& host) {
  return names.contains(host) || host.starts_with("127.") || host == "::1";
}

std::vector<std::string> reachable_endpoints(const std::string& address, uint16_t port) {
  const bool every4 = address == "0.0.0.0";
  const bool every = address == "::";
  if (!every4 && !every) {
    return {address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                   : fmt::format("[{}]:{}", address, port)};
  }
  std::vector<std::string> result;
  std::vector<std::string> loopback;
  std::vector<Address> all = addresses();
  std::stable_partition(all.begin(), all.end(),
                        [name = main_interface()](const Address& a) { return a.interface == name; });
  for (const Address& a : all) {
    if ((a.v6 && every4) || a.link_local) continue;
    (a.loopback ? loopback : result).push_back(endpoint(a, port));
  }
  if (result.empty()) result = loopback;
  if (result.size() > kMostEndpoints) result.resize(kMostEndpoints);
  return result;
}

}  // namespace hvd::agent
