// Asks the kernel whose the other ends of connections are.
#include "modules/mpi_elastic/pmix_server/peers.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace hvd::pmix_server {
namespace {

// As /proc/net/tcp has an address: its words in memory's order as hexadecimal numbers, then the port.
std::string kernel_text(const sockaddr_storage& address) {
  char text[64] = {};
  if (address.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address, sizeof in);
    std::snprintf(text, sizeof text, "%08X:%04X", in.sin_addr.s_addr, ntohs(in.sin_port));
  } else {
    sockaddr_in6 in{};
    std::memcpy(&in, &address, sizeof in);
    unsigned words[4] = {};
    std::memcpy(words, &in.sin6_addr, sizeof words);
    std::snprintf(text, sizeof text, "%08X%08X%08X%08X:%04X", words[0], words[1], words[2], words[3],
                  ntohs(in.sin6_port));
  }
  return text;
}

}  // namespace

std::optional<uid_t> peer_user(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0 ||
      (own.ss_family != AF_INET && own.ss_family != AF_INET6))
    return std::nullopt;
  // The same connection, seen from there.
  const std::string wanted = kernel_text(peer) + " " + kernel_text(own);
  std::ifstream table(own.ss_family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string number, from, to, state, queues, timer, retransmits;
    uid_t user = 0;
    if (fields >> number >> from >> to >> state >> queues >> timer >> retransmits >> user &&
        from + " " + to == wanted)
      return user;
  }
  return std::nullopt;
}

int close_strangers() {
  int closed = 0;
  DIR* const descriptors = opendir("/proc/self/fd");
  if (descriptors == nullptr) return 0;
  while (const dirent* entry = readdir(descriptors)) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    const int fd = std::atoi(entry->d_name);
    if (const auto user = peer_user(fd); user && *user != geteuid()) {
      shutdown(fd, SHUT_RDWR);  // libpmix finds its end, and closes it
      ++closed;
    }
  }
  closedir(descriptors);
  return closed;
}

}  // namespace hvd::pmix_server
