// What elastic processes of every MPI have in common.
#include "modules/mpi_elastic/runtime.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "modules/mpi_elastic/environment.h"
#include "modules/mpi_elastic/launch.h"

namespace hvdmpi {
namespace {
constexpr std::chrono::seconds kBegin{5};  // of MPI, when the process ends
}

Runtime& Runtime::get() { return ElasticRuntime::get(); }

void ElasticRuntime::prepare(const std::string& interface, const std::string& links) {
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun != 0) return;
  forget_launcher();
  set_variables(interface, links);
  // The destructors of libraries, which run at the end of the process, would take back what MPI's beginning
  // uses in its thread: a SIGSEGV. A child has no such thread.
  static std::once_flag registered;
  static const pid_t process = getpid();
  std::call_once(registered, [] {
    std::atexit([] {
      if (getpid() == process) get().let_begin(Clock::now() + kBegin);
    });
  });
}

void set_default(const char* name, const std::string& value) { set_variable(name, value, false); }

std::string interface_of(const std::string& address) {
  ifaddrs* all = nullptr;
  if (address.empty() || getifaddrs(&all) != 0) return {};
  std::string name;
  for (const ifaddrs* one = all; one != nullptr && name.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const bool v6 = one->ifa_addr->sa_family == AF_INET6;
    if (!v6 && one->ifa_addr->sa_family != AF_INET) continue;
    char text[NI_MAXHOST] = {};
    const socklen_t length = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (getnameinfo(one->ifa_addr, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (address == text) name = one->ifa_name;
  }
  freeifaddrs(all);
  return name;
}

}  // namespace hvdmpi
