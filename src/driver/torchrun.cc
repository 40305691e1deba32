// What a worker of the first generation is, in torchrun's words.
#include "driver/torchrun.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/descriptor.h"

namespace hvd::driver {

std::vector<std::string> torchrun_variables(const TorchrunPlace& place) {
  const bool begins = place.first && place.number < place.world;
  int64_t local = place.host_slots;
  // The last host may have more slots than are used.
  if (begins) local = std::min(local, place.world - std::max<int64_t>(place.number - place.slot, 0));
  std::vector<std::string> result = {fmt::format("LOCAL_RANK={}", place.slot),
                                     fmt::format("LOCAL_WORLD_SIZE={}", local), "MASTER_ADDR=" + place.master,
                                     fmt::format("MASTER_PORT={}", place.port)};
  if (begins) {
    result.push_back(fmt::format("RANK={}", place.number));
    result.push_back(fmt::format("WORLD_SIZE={}", place.world));
  }
  return result;
}

uint16_t free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (socket.get() < 0 || ::bind(socket.get(), any, size) != 0 ||
      ::getsockname(socket.get(), any, &size) != 0)
    return 0;
  return ntohs(address.sin_port);
}

}  // namespace hvd::driver
