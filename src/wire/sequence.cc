// What both ends of a connection check of a message before they look into it.
#include "wire/sequence.h"

#include <fmt/format.h>

#include "base/text.h"

namespace hvd::wire {

std::string foreign_protocol(const char* who, uint32_t protocol, const std::string& library) {
  if (protocol == kProtocol) return "";
  return fmt::format("{} speaks protocol {} (library {}), this driver {}", who, protocol, printable(library),
                     kProtocol);
}

}  // namespace hvd::wire
