// Serves PMI version 1 to the MPICH of this process.
#include "modules/mpi_elastic/pmi.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "hvd/backend.hpp"
#include "modules/kit/net.h"
#include "modules/mpi_elastic/environment.h"

namespace hvdmpi {
namespace {

constexpr const char* kVariables[] = {"PMI_FD", "PMI_RANK", "PMI_SIZE"};
constexpr size_t kLongest = 4096;  // of a request; MPI's are a quarter of that at most

std::string unique_name() {
  std::string name = "hvd_";
  for (const uint8_t byte : hvdkit::random_token()) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

// One request a line, "cmd=put kvsname=... key=... value=...", and one line in answer.
class Server {
 public:
  explicit Server(int fd) : fd_(fd) {}

  void run() {
    std::string heard;
    char bytes[1024];
    for (bool goes_on = true; goes_on && heard.size() < kLongest;) {
      const ssize_t size = read(fd_, bytes, sizeof(bytes));
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) break;
      heard.append(bytes, static_cast<size_t>(size));
      for (size_t end = 0; goes_on && (end = heard.find('\n')) != std::string::npos;
           heard.erase(0, end + 1)) {
        goes_on = say(answer(heard.substr(0, end)));
      }
    }
    close(fd_);
  }

 private:
  // What `key` is in the request. A value is the last in its line, and may have spaces.
  static std::string field(const std::string& request, const std::string& key) {
    size_t begin = (" " + request).find(" " + key + "=");
    if (begin == std::string::npos) return {};
    begin += key.size() + 1;
    const size_t end = key == "value" ? std::string::npos : request.find(' ', begin);
    return request.substr(begin, end == std::string::npos ? end : end - begin);
  }

  // "": a request that a process alone has no use for (to spawn others, to look their names up): the
  // conversation ends, and MPI's call fails.
  std::string answer(const std::string& request) {
    const std::string command = field(request, "cmd");
    if (command == "init") return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1";
    if (command == "get_maxes") return "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024";
    if (command == "get_appnum") return "cmd=appnum rc=0 appnum=0";
    if (command == "get_universe_size") return "cmd=universe_size rc=0 size=1";
    if (command == "get_my_kvsname") return "cmd=my_kvsname rc=0 kvsname=" + name_;
    if (command == "barrier_in") return "cmd=barrier_out rc=0";
    if (command == "finalize") return "cmd=finalize_ack rc=0";
    if (command == "put") {
      values_[field(request, "key")] = field(request, "value");
      return "cmd=put_result rc=0 msg=success";
    }
    if (command == "get") {
      const auto found = values_.find(field(request, "key"));
      if (found == values_.end()) return "cmd=get_result rc=-1 msg=key_not_found value=unknown";
      return "cmd=get_result rc=0 msg=success value=" + found->second;
    }
    return {};
  }

  bool say(std::string line) const {
    if (line.empty()) return false;
    line += '\n';
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t size = send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return false;
      sent += static_cast<size_t>(size);
    }
    return true;
  }

  const int fd_;
  const std::string name_ = unique_name();
  std::map<std::string, std::string> values_;
};

}  // namespace

OwnLauncher::OwnLauncher() {
  int ends[2] = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw hvdkit::Failure(HVD_UNAVAILABLE,
                          std::string("a pair of sockets for MPICH's PMI: ") + std::strerror(errno));
  }
  const hvdkit::BlockSignals block;
  std::thread([fd = ends[0]] { Server(fd).run(); }).detach();
  set_variable("PMI_FD", std::to_string(ends[1]), true);
  set_variable("PMI_RANK", "0", true);
  set_variable("PMI_SIZE", "1", true);
}

OwnLauncher::~OwnLauncher() {
  for (const char* variable : kVariables) unset_variable(variable);
}

}  // namespace hvdmpi
