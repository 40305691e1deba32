// Addresses of this machine, listening sockets, random tokens.
#include "modules/kit/net.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "hvd/backend.hpp"

namespace hvdkit {
namespace {

constexpr uint8_t kMagic[4] = {'h', 'v', 'd', 'L'};
constexpr uint8_t kVersion = 2;

struct Ip {
  sockaddr_storage address{};
  socklen_t length = 0;
};

bool parse_ip(const std::string& text, Ip* ret_ip) {
  Ip ip;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&ip.address);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&ip.address);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    ip.length = sizeof(sockaddr_in);
  } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    ip.length = sizeof(sockaddr_in6);
  } else {
    return false;
  }
  *ret_ip = ip;
  return true;
}

std::string to_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof(text));
  }
  return text;
}

bool is_local(const std::string& text) {
  Ip ip;
  if (!parse_ip(text, &ip)) return false;
  const Fd fd(::socket(ip.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd.get() >= 0 && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&ip.address), ip.length) == 0;
}

struct Interface {
  std::string name, ip;
  bool loopback, v6;
};

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {  // IPv4 first
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_UP) == 0)
        continue;
      const bool v6 = family == AF_INET6;
      if (v6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr))
        continue;
      found.push_back({i->ifa_name, to_text(i->ifa_addr), (i->ifa_flags & IFF_LOOPBACK) != 0, v6});
    }
  }
  return found;
}

std::string host_address() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) == 0) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    if (getaddrinfo(name, nullptr, &hints, &list) == 0) {
      const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
      for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
        if (std::string text = to_text(a->ai_addr); is_local(text)) return text;
      }
    }
  }
  const std::vector<Interface> all = interfaces();
  for (const bool loopback : {false, true}) {
    for (const Interface& i : all) {
      if (i.loopback == loopback) return i.ip;
    }
  }
  throw Failure(HVD_UNAVAILABLE, "this host has no network interface that is up");
}

}  // namespace

std::array<uint8_t, Blob::kSize> Blob::encode() const {
  std::array<uint8_t, kSize> bytes{};
  std::memcpy(bytes.data(), kMagic, 4);
  bytes[4] = kVersion;
  bytes[5] = static_cast<uint8_t>((v6 ? 6 : 4) | static_cast<int>(encrypt) << 4);
  bytes[6] = static_cast<uint8_t>(port >> 8);
  bytes[7] = static_cast<uint8_t>(port & 0xff);
  std::memcpy(&bytes[8], ip.data(), ip.size());
  std::memcpy(&bytes[24], token.data(), token.size());
  return bytes;
}

Blob Blob::decode(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (bytes == nullptr || size != kSize || std::memcmp(bytes, kMagic, 4) != 0 || bytes[4] != kVersion ||
      ((bytes[5] & 0xf) != 4 && (bytes[5] & 0xf) != 6) || bytes[5] >> 4 > static_cast<int>(Encrypt::kOn)) {
    throw Failure(HVD_INVALID,
                  "an address of " + std::to_string(size) + " bytes does not tell where links listen");
  }
  Blob blob;
  blob.v6 = (bytes[5] & 0xf) == 6;
  blob.encrypt = static_cast<Encrypt>(bytes[5] >> 4);
  blob.port = static_cast<uint16_t>(bytes[6] << 8 | bytes[7]);
  std::memcpy(blob.ip.data(), &bytes[8], blob.ip.size());
  std::memcpy(blob.token.data(), &bytes[24], blob.token.size());
  return blob;
}

sockaddr_storage Blob::sockaddr_of(socklen_t* length) const {
  sockaddr_storage address{};
  if (v6) {
    auto* a = reinterpret_cast<sockaddr_in6*>(&address);
    a->sin6_family = AF_INET6;
    a->sin6_port = htons(port);
    std::memcpy(&a->sin6_addr, ip.data(), 16);
    *length = sizeof(*a);
  } else {
    auto* a = reinterpret_cast<sockaddr_in*>(&address);
    a->sin_family = AF_INET;
    a->sin_port = htons(port);
    std::memcpy(&a->sin_addr, ip.data(), 4);
    *length = sizeof(*a);
  }
  return address;
}

void fill_random(void* data, size_t size) {
  if (getrandom(data, size, 0) != static_cast<ssize_t>(size)) {
    throw Failure(HVD_UNAVAILABLE, std::string("getrandom: ") + std::strerror(errno), -1, errno);
  }
}

Token random_token() {
  Token token;
  fill_random(token.data(), token.size());
  return token;
}

bool encrypts(const Blob& a, const Blob& b) {
  // kAuto: where it costs less than a quarter of the throughput. It costs half and more on every machine that
  // was measured (docs/backends.md), none of which encrypts in the kernel or the network card.
  return std::max(a.encrypt, b.encrypt) == Encrypt::kOn;
}

std::string local_address(const std::string& interface, const std::string& route) {
  Ip ip;
  if (interface.empty() && route.empty()) return host_address();
  const std::string& wanted = interface.empty() ? route : interface;
  if (parse_ip(wanted, &ip)) {
    if (is_local(wanted)) return wanted;
  } else if (!interface.empty()) {
    for (const Interface& i : interfaces()) {
      if (i.name == interface) return i.ip;
    }
  }
  std::string known;
  for (const Interface& i : interfaces()) known += " " + i.name + "=" + i.ip;
  throw Failure(HVD_UNAVAILABLE,
                "option " + std::string(interface.empty() ? "route" : "interface") + " is '" + wanted +
                    "', which is not an address or interface of this host that is up; it has" + known);
}

size_t share_of_descriptors(size_t most) {
  constexpr size_t kLeast = 4;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return most;
  return std::clamp<size_t>(limit.rlim_cur / 8, kLeast, most);
}

Fd listen_at(const std::string& ip_text, Blob* ret_blob) {
  Ip ip;
  if (!parse_ip(ip_text, &ip)) throw Failure(HVD_INVALID, "'" + ip_text + "' is not an address");
  const auto check = [&](int result, const char* what) {
    if (result < 0) {
      throw Failure(HVD_UNAVAILABLE, std::string(what) + " at " + ip_text + ": " + std::strerror(errno), -1,
                    errno);
    }
  };
  Fd fd(::socket(ip.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  check(fd.get(), "socket");
  check(::bind(fd.get(), reinterpret_cast<sockaddr*>(&ip.address), ip.length), "bind");
  check(::listen(fd.get(), SOMAXCONN), "listen");
  check(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&ip.address), &ip.length), "getsockname");
  Blob blob;
  blob.v6 = ip.address.ss_family == AF_INET6;
  if (blob.v6) {
    const auto* a = reinterpret_cast<const sockaddr_in6*>(&ip.address);
    blob.port = ntohs(a->sin6_port);
    std::memcpy(blob.ip.data(), &a->sin6_addr, 16);
  } else {
    const auto* a = reinterpret_cast<const sockaddr_in*>(&ip.address);
    blob.port = ntohs(a->sin_port);
    std::memcpy(blob.ip.data(), &a->sin_addr, 4);
  }
  blob.token = random_token();
  *ret_blob = blob;
  return fd;
}

}  // namespace hvdkit
